//! The driver: devices, memory, copies, events, modules and launches.
//!
//! `unsafe` is needed because the driver is a C library. The safe side guarantees: a [`Block`] keeps its [`Allocation`]
//! alive and was cut from it with its bounds checked; every copy checks lengths before it names addresses; work and copies
//! go to one stream, so they happen in the order of the calls, and a copy to host memory has ended when the call returns;
//! copies from pinned memory, which go on after their call, are [`staging`]'s alone.
//! A launch is `unsafe` to its caller, in `crate::launch`, which answers for the kernel's arguments. Tested on a device by
//! `crate::tests`.
//!
//! The library is opened when [`Gpu::open`] is first called, and its absence is an error like any other.

mod shelf;
mod staging;

use std::ffi::{CString, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys};

use crate::error::CudaError;

pub(crate) use self::shelf::{PAGE, Pages, Shelf};
pub(crate) use self::staging::Staging;

/// Bytes that every block begins at a multiple of; the copy engine asks for 128.
const ALIGNMENT: usize = 256;

/// Values that device memory may hold: any bits are a value.
pub(crate) trait Plain: Copy + Default + 'static {}
impl Plain for f32 {}
impl Plain for f64 {}
impl Plain for i32 {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for [f32; 2] {}
impl Plain for [f64; 2] {}
impl Plain for [i32; 4] {}
impl Plain for [u64; 4] {}

/// The context of a device, which any thread may use.
struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a context is a handle that the driver guards itself; any thread may make it its own by `bind`.
unsafe impl Send for Context {}
// SAFETY: as for `Send`; nothing in it changes.
unsafe impl Sync for Context {}

impl Context {
    /// Makes the context the calling thread's.
    fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context was retained in `open` and is released only when this is dropped.
        unsafe { result::ctx::set_current(self.context) }
            .map_err(|error| failed("the context", error))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `open` retained it once; nothing that needs it is left, since all of that holds an `Arc` of it.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A device with a stream of work.
pub(crate) struct Gpu {
    context: Arc<Context>,
    stream: sys::CUstream,
    name: String,
    capability: (i32, i32),
    multiprocessors: usize,
}

// SAFETY: a stream is a handle that the driver guards itself.
unsafe impl Send for Gpu {}
// SAFETY: as for `Send`; nothing in it changes.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens a device by its number.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::NoDevice`], or what the driver says.
    pub(crate) fn open(ordinal: usize) -> Result<Gpu, CudaError> {
        let count = device_count()?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let ordinal = i32::try_from(ordinal).expect("below the driver's own count");
        let device = result::device::get(ordinal).map_err(|error| failed("the device", error))?;
        let name =
            result::device::get_name(device).map_err(|error| failed("the device's name", error))?;
        let attribute = |which| {
            // SAFETY: the device is one that the driver gave.
            unsafe { result::device::get_attribute(device, which) }
                .map_err(|error| failed("an attribute of the device", error))
        };
        use sys::CUdevice_attribute_enum as Attribute;
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        // SAFETY: the device is one that the driver gave; `Context` releases what this retains.
        let context = unsafe { result::primary_ctx::retain(device) }
            .map_err(|error| failed("the context", error))?;
        let context = Arc::new(Context { device, context });
        context.bind()?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = stream.map_err(|error| failed("a stream", error))?;
        Ok(Gpu {
            context,
            stream,
            name,
            capability: (major, minor),
            multiprocessors: usize::try_from(multiprocessors).unwrap_or(1),
        })
    }

    /// Makes the device the calling thread's. Every entry into the backend does it once.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        self.context.bind()
    }

    /// The device's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its compute capability.
    pub(crate) fn capability(&self) -> (i32, i32) {
        self.capability
    }

    /// Its number of multiprocessors.
    pub(crate) fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// Device memory that is free now, in bytes.
    pub(crate) fn free_bytes(&self) -> Result<usize, CudaError> {
        self.bind()?;
        let (free, _) = result::mem_get_info().map_err(|error| failed("free memory", error))?;
        Ok(free)
    }

    /// Waits until all work is done.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the stream was created in `open` and lives as long as `self`.
        unsafe { result::stream::synchronize(self.stream) }
            .map_err(|error| failed("waiting for the device", error))
    }

    /// Copies values to the device. The values are read before the call returns.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn upload<T: Plain>(&self, to: &Block<T>, from: &[T]) -> Result<(), CudaError> {
        assert_eq!(to.len, from.len(), "a copy of equal lengths");
        // SAFETY: `to` has room for `from.len()` values, which the line above checked; the driver stages pageable memory
        // before it returns, so `from` is not read later.
        unsafe { result::memcpy_htod_async(to.address, from, self.stream) }
            .map_err(|error| failed("a copy to the device", error))
    }

    /// Copies bytes to the device in `lines` pieces of `width` bytes, `pitch` bytes apart there and without gaps here.
    ///
    /// # Panics
    /// If a piece would lie outside the block.
    pub(crate) fn upload_lines(
        &self,
        to: &Block<u16>,
        from: &[u8],
        width: usize,
        pitch: usize,
    ) -> Result<(), CudaError> {
        assert!(
            from.len().is_multiple_of(width) && width <= pitch,
            "whole lines that do not overlap"
        );
        let lines = from.len() / width;
        assert!(
            (lines - 1) * pitch + width <= to.bytes(),
            "lines past the block's end"
        );
        let copy = sys::CUDA_MEMCPY2D {
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: from.as_ptr().cast(),
            srcPitch: width,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstDevice: to.address,
            dstPitch: pitch,
            WidthInBytes: width,
            Height: lines,
            ..empty_copy()
        };
        // SAFETY: the two asserts put every line of `width` bytes inside `from` and inside `to`.
        unsafe { self.copy_lines(&copy) }
    }

    /// # Safety
    /// Every line that `copy` names lies inside memory that is valid until the stream has done it; host memory to be read
    /// is pageable, so that it is staged before the call returns, or is not written until the stream has read it.
    unsafe fn copy_lines(&self, copy: &sys::CUDA_MEMCPY2D) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { sys::cuMemcpy2DAsync_v2(copy, self.stream) }
            .result()
            .map_err(|error| failed("a copy of lines", error))
    }

    /// Copies values from the device; they are there when the call returns.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn download<T: Plain>(
        &self,
        from: &Block<T>,
        out: &mut [T],
    ) -> Result<(), CudaError> {
        assert_eq!(from.len, out.len(), "a copy of equal lengths");
        // SAFETY: `from` has `out.len()` values, which the line above checked, and any bits are a value of T; `wait` lets the
        // copy end before `out` is used again.
        unsafe { result::memcpy_dtoh_async(out, from.address, self.stream) }
            .map_err(|error| failed("a copy from the device", error))?;
        self.wait()
    }

    /// Copies a block to another of the same device, in the order of this stream.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn copy<T: Plain>(&self, from: &Block<T>, to: &Block<T>) -> Result<(), CudaError> {
        assert_eq!(from.len, to.len, "a copy of equal lengths");
        // SAFETY: both blocks have `from.bytes()` bytes, which the line above checked, and any bits are a value of T.
        unsafe { result::memcpy_dtod_async(to.address, from.address, from.bytes(), self.stream) }
            .map_err(|error| failed("a copy on the device", error))
    }

    /// Lets the work that follows on this stream begin only after what stood before a mark, on whichever stream.
    pub(crate) fn wait_for(&self, mark: &Mark) -> Result<(), CudaError> {
        use sys::CUevent_wait_flags_enum::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event was recorded and lives; a stream keeps what it needs of it.
        unsafe { result::stream::wait_event(self.stream, mark.event, CU_EVENT_WAIT_DEFAULT) }
            .map_err(|error| failed("an event", error))
    }

    /// Copies values from the device into pinned memory, at its start; they are there when the call returns.
    ///
    /// # Panics
    /// If the pinned memory is smaller.
    pub(crate) fn download_pinned<'a, T: Plain>(
        &self,
        from: &Block<T>,
        out: &'a mut Pinned<T>,
    ) -> Result<&'a [T], CudaError> {
        let out = out.values(from.len);
        self.download(from, out)?;
        Ok(out)
    }

    /// Fills a block with a byte.
    pub(crate) fn fill<T: Plain>(&self, block: &Block<T>, byte: u8) -> Result<(), CudaError> {
        // SAFETY: the block's bytes lie inside its allocation, and any bits are a value of T.
        unsafe { result::memset_d8_async(block.address, byte, block.bytes(), self.stream) }
            .map_err(|error| failed("filling memory", error))
    }

    /// Zeros `lines` pieces of a block, `width` values each and `pitch` values apart.
    ///
    /// # Panics
    /// If a piece lies outside the block.
    pub(crate) fn zero_lines<T: Plain>(
        &self,
        block: &Block<T>,
        (lines, width, pitch): (usize, usize, usize),
    ) -> Result<(), CudaError> {
        if lines * width == 0 {
            return Ok(());
        }
        assert!(
            (lines - 1) * pitch + width <= block.len,
            "lines past the block's end"
        );
        let size = size_of::<T>();
        // SAFETY: the assert puts every line inside the block, and zeros are a value of T.
        unsafe {
            sys::cuMemsetD2D8Async(
                block.address,
                pitch * size,
                0,
                width * size,
                lines,
                self.stream,
            )
        }
        .result()
        .map_err(|error| failed("zeroing memory", error))
    }

    /// Marks the place in the stream that the work so far ends at.
    pub(crate) fn mark(&self) -> Result<Mark, CudaError> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let mark = Mark {
            event: event.map_err(|error| failed("an event", error))?,
        };
        // SAFETY: event and stream are live handles of the same context.
        unsafe { result::event::record(mark.event, self.stream) }
            .map_err(|error| failed("an event", error))?;
        Ok(mark)
    }

    /// Loads kernels.
    ///
    /// # Errors
    /// The driver's, above all if the image has no code for this device.
    pub(crate) fn load_module(
        &self,
        name: &'static str,
        image: &'static Image<[u8]>,
    ) -> Result<Module, CudaError> {
        // SAFETY: the image is a whole fatbin that lives forever; `build.sh` made it and CI compares it.
        let module = unsafe { result::module::load_data(image.bytes.as_ptr().cast()) };
        Ok(Module {
            name,
            module: module.map_err(|error| failed(name, error))?,
        })
    }

    /// Records the launches that `queue` makes instead of doing them. It makes launches alone, no copies and no allocations.
    ///
    /// # Errors
    /// The driver's, or those of `queue`.
    pub(crate) fn record(
        &self,
        queue: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Graph, CudaError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::begin_capture(self.stream, mode) }
            .map_err(|error| failed("a recording", error))?;
        let queued = queue();
        // SAFETY: as above; a recording that was begun is ended, whatever `queue` said.
        let graph = unsafe { result::stream::end_capture(self.stream) };
        queued?;
        let graph = graph.map_err(|error| failed("a recording", error))?;
        // SAFETY: the graph was just made.
        let executable =
            unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: as above; the executable does not need it.
        let _ = unsafe { result::graph::destroy(graph) };
        let executable = executable.map_err(|error| failed("a recording", error))?;
        Ok(Graph {
            context: Arc::clone(&self.context),
            executable,
        })
    }

    /// Queues what was recorded.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn replay(&self, graph: &Graph) -> Result<(), CudaError> {
        // SAFETY: graph and stream live; the launches name blocks that the backend keeps as long as the graph.
        unsafe { result::graph::launch(graph.executable, self.stream) }
            .map_err(|error| failed("a recording", error))
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// The arguments are those of the kernel, in order, each a pointer to a value of its type; whatever memory the kernel
    /// touches through them lies inside live blocks.
    pub(crate) unsafe fn launch(
        &self,
        kernel: Kernel,
        grid: [usize; 3],
        threads: usize,
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { self.launch_as(None, kernel, grid, threads, arguments) }
    }

    /// Blocks of a kernel, of so many threads, that an idle device has room for at one time.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn blocks_together(
        &self,
        kernel: Kernel,
        threads: usize,
    ) -> Result<usize, CudaError> {
        let threads = i32::try_from(threads).expect("at most 1024 threads");
        let (mut each, shared) = (0, kernel.shared as usize);
        // SAFETY: the kernel's module is never unloaded; the number is an output.
        unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &raw mut each,
                kernel.function,
                threads,
                shared,
            )
        }
        .result()
        .map_err(|error| failed(kernel.name, error))?;
        Ok(usize::try_from(each).unwrap_or(0) * self.multiprocessors)
    }

    /// Launches a kernel whose blocks are all on the device at one time, so that they may wait for one another.
    ///
    /// # Errors
    /// The driver's, also if so many blocks do not fit.
    ///
    /// # Safety
    /// As [`Gpu::launch`].
    pub(crate) unsafe fn launch_together(
        &self,
        kernel: Kernel,
        grid: [usize; 3],
        threads: usize,
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let together = attribute(
            sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            sys::CUlaunchAttributeValue { cooperative: 1 },
        );
        // SAFETY: the caller's.
        unsafe { self.launch_as(Some(together), kernel, grid, threads, arguments) }
    }

    /// Launches a kernel whose blocks may come while the one before it in the stream ends (on Hopper), which hides what a
    /// launch takes.
    ///
    /// # Safety
    /// As [`Gpu::launch`]; moreover the kernel waits (`griddepcontrol.wait`) before it touches what other kernels write.
    pub(crate) unsafe fn launch_chained(
        &self,
        kernel: Kernel,
        grid: [usize; 3],
        threads: usize,
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let early = attribute(
            sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            sys::CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: 1,
            },
        );
        // Code for other devices, made from PTX of Ampere, would not wait.
        let early = (self.capability == (9, 0)).then_some(early);
        // SAFETY: the caller's.
        unsafe { self.launch_as(early, kernel, grid, threads, arguments) }
    }

    /// Launches a kernel in a manner that an attribute names.
    ///
    /// # Safety
    /// As [`Gpu::launch`], and what the manner asks for.
    unsafe fn launch_as(
        &self,
        mut manner: Option<sys::CUlaunchAttribute>,
        kernel: Kernel,
        grid: [usize; 3],
        threads: usize,
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let narrow = |x: usize| u32::try_from(x).expect("a grid of fewer than 2^32 blocks");
        let [x, y, z] = grid.map(narrow);
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: narrow(threads),
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: kernel.shared,
            hStream: self.stream,
            numAttrs: u32::from(manner.is_some()),
            attrs: manner
                .as_mut()
                .map_or(std::ptr::null_mut(), |attribute| attribute),
        };
        // SAFETY: the kernel's module is never unloaded, config and attribute live through the call; the rest is the caller's.
        unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                kernel.function,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
        .map_err(|error| failed(kernel.name, error))
    }
}

/// An attribute of a launch.
fn attribute(
    id: sys::CUlaunchAttributeID,
    value: sys::CUlaunchAttributeValue,
) -> sys::CUlaunchAttribute {
    sys::CUlaunchAttribute {
        id,
        pad: [0; 4],
        value,
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.bind().is_ok() {
            let _ = self.wait();
            // SAFETY: `open` created it; nothing is left on it, and nobody else has it.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Code for devices, at an address that the driver accepts.
#[repr(C, align(64))]
pub(crate) struct Image<T: ?Sized> {
    pub(crate) bytes: T,
}

/// Loaded kernels. They stay loaded as long as the context.
pub(crate) struct Module {
    name: &'static str,
    module: sys::CUmodule,
}

impl Module {
    /// Finds a kernel, which may use `shared` bytes of dynamic shared memory.
    pub(crate) fn kernel(&self, name: &'static str, shared: usize) -> Result<Kernel, CudaError> {
        let text = CString::new(name).expect("names of kernels have no zero byte");
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(self.module, text) };
        let function = function.map_err(|error| failed(name, error))?;
        let shared = u32::try_from(shared).expect("shared memory of one multiprocessor");
        if shared > 48 << 10 {
            use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as SHARED;
            // SAFETY: the function is one that the driver gave.
            unsafe {
                result::function::set_function_attribute(function, SHARED, shared.cast_signed())
            }
            .map_err(|error| failed(name, error))?;
        }
        Ok(Kernel {
            name,
            function,
            shared,
        })
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A kernel with its dynamic shared memory in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    function: sys::CUfunction,
    shared: u32,
}

// SAFETY: a function is a handle that the driver guards itself.
unsafe impl Send for Kernel {}
// SAFETY: as for `Send`; nothing in it changes.
unsafe impl Sync for Kernel {}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A place in the stream.
pub(crate) struct Mark {
    event: sys::CUevent,
}

// SAFETY: an event is a handle that the driver guards itself.
unsafe impl Send for Mark {}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mark").finish_non_exhaustive()
    }
}

impl Mark {
    /// Waits until the work before this place is done.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the event was recorded.
        unsafe { result::event::synchronize(self.event) }.map_err(|error| failed("an event", error))
    }

    /// Milliseconds from this place to a later one; waits for both.
    pub(crate) fn ms_until(&self, later: &Mark) -> Result<f64, CudaError> {
        // SAFETY: both events were recorded.
        unsafe { result::event::synchronize(later.event) }
            .map_err(|error| failed("an event", error))?;
        // SAFETY: as above.
        let ms = unsafe { result::event::elapsed(self.event, later.event) };
        Ok(f64::from(ms.map_err(|error| failed("an event", error))?))
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: `mark` created it, and nobody else has it.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}

/// Launches that were recorded, to be queued again as one.
pub(crate) struct Graph {
    context: Arc<Context>,
    executable: sys::CUgraphExec,
}

// SAFETY: an executable graph is a handle; whoever has it queues it on one stream at a time.
unsafe impl Send for Graph {}
// SAFETY: as for `Send`; nothing in it changes.
unsafe impl Sync for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: `record` made it, and nobody else has it; the driver lets queued work end.
            let _ = unsafe { result::graph::exec_destroy(self.executable) };
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}

/// Memory of the device.
struct Allocation {
    context: Arc<Context>,
    address: u64,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: `Arena::new` allocated it; the driver waits for work that uses it.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Host memory that the device copies to and from without a detour.
pub(crate) struct Pinned<T> {
    context: Arc<Context>,
    address: *mut T,
    len: usize,
}

// SAFETY: it is memory that nobody else has.
unsafe impl<T: Send> Send for Pinned<T> {}
// SAFETY: as for `Send`; what it holds is reached through `&mut` alone.
unsafe impl<T: Sync> Sync for Pinned<T> {}

impl<T: Plain> Pinned<T> {
    /// Allocates `len` values, all zero.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn new(gpu: &Gpu, len: usize) -> Result<Pinned<T>, CudaError> {
        gpu.bind()?;
        let bytes = (len * size_of::<T>()).max(1);
        // SAFETY: the context is the thread's; the drop frees what this gives.
        let address = unsafe { result::malloc_host(bytes, 0) }
            .map_err(|error| failed("pinned memory", error))?;
        // SAFETY: `address` has `bytes` bytes, and nobody else has it.
        unsafe { std::ptr::write_bytes(address.cast::<u8>(), 0, bytes) };
        Ok(Pinned {
            context: Arc::clone(&gpu.context),
            address: address.cast(),
            len,
        })
    }

    /// The first `len` values.
    ///
    /// # Panics
    /// If there are fewer.
    fn values(&mut self, len: usize) -> &mut [T] {
        assert!(len <= self.len, "pinned memory for all values");
        // SAFETY: the driver aligns to pages; `new` wrote all values, and any bits are one; `&mut self` keeps others out.
        unsafe { std::slice::from_raw_parts_mut(self.address, len) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: `new` allocated it; copies into it have ended when their calls returned, and who copies from it waits for
            // them before.
            let _ = unsafe { result::free_host(self.address.cast()) };
        }
    }
}

impl<T> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// One allocation from which blocks are cut.
pub(crate) struct Arena {
    allocation: Arc<Allocation>,
    bytes: usize,
    used: usize,
}

impl Arena {
    /// Allocates, and fills every byte with zeros.
    ///
    /// # Errors
    /// [`CudaError::Memory`] if there is no such memory.
    pub(crate) fn new(gpu: &Gpu, what: &'static str, bytes: usize) -> Result<Arena, CudaError> {
        gpu.bind()?;
        let bytes = bytes.max(ALIGNMENT);
        // SAFETY: the context is the thread's; `Allocation` frees what this gives.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => CudaError::Memory { what, bytes },
            _ => failed("an allocation", error),
        })?;
        let allocation = Arc::new(Allocation {
            context: Arc::clone(&gpu.context),
            address,
        });
        let arena = Arena {
            allocation,
            bytes,
            used: 0,
        };
        let whole: Block<u8> = Block {
            allocation: Arc::clone(&arena.allocation),
            address,
            len: bytes,
            values: PhantomData,
        };
        gpu.fill(&whole, 0)?;
        Ok(arena)
    }

    /// Bytes that a block of `len` values takes.
    pub(crate) fn bytes_for<T: Plain>(len: usize) -> usize {
        len.saturating_mul(size_of::<T>())
            .next_multiple_of(ALIGNMENT)
    }

    /// Cuts a block off.
    ///
    /// # Panics
    /// If the arena was made too small.
    pub(crate) fn take<T: Plain>(&mut self, len: usize) -> Block<T> {
        let bytes = Arena::bytes_for::<T>(len);
        assert!(
            bytes <= self.bytes - self.used,
            "the arena was measured for all its blocks"
        );
        let address = self.allocation.address + self.used as u64;
        self.used += bytes;
        Block {
            allocation: Arc::clone(&self.allocation),
            address,
            len,
            values: PhantomData,
        }
    }
}

/// Values in device memory. Clones are the same memory.
pub(crate) struct Block<T> {
    allocation: Arc<Allocation>,
    address: u64,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Plain> Block<T> {
    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// A part of it.
    ///
    /// # Panics
    /// If the part lies outside.
    pub(crate) fn part(&self, range: Range<usize>) -> Block<T> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "a part outside its block"
        );
        Block {
            allocation: Arc::clone(&self.allocation),
            address: self.address + (range.start * size_of::<T>()) as u64,
            len: range.len(),
            values: PhantomData,
        }
    }

    /// The same memory as bytes.
    pub(crate) fn as_bytes(&self) -> Block<u8> {
        Block {
            allocation: Arc::clone(&self.allocation),
            address: self.address,
            len: self.bytes(),
            values: PhantomData,
        }
    }

    /// The address, as kernels take it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl<T> Clone for Block<T> {
    fn clone(&self) -> Block<T> {
        Block {
            allocation: Arc::clone(&self.allocation),
            address: self.address,
            len: self.len,
            values: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Block<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A view of rows of bf16 values for the copy engine: boxes of `box_rows` rows and `box_columns` columns, swizzled.
#[derive(Clone, Copy)]
pub(crate) struct TensorMap(#[expect(dead_code, reason = "kernels read it")] sys::CUtensorMap);

impl TensorMap {
    /// Rows of `columns` values, `pitch` values apart.
    ///
    /// # Panics
    /// If the rows lie outside the block or are not at multiples of 16 bytes.
    pub(crate) fn new(
        block: &Block<u16>,
        [rows, columns, pitch]: [usize; 3],
        [box_rows, box_columns]: [usize; 2],
    ) -> Result<TensorMap, CudaError> {
        assert!(
            rows > 0 && columns <= pitch && (rows - 1) * pitch + columns <= block.len,
            "rows outside the block"
        );
        assert!(
            pitch.is_multiple_of(8) && block.address.is_multiple_of(16),
            "rows at multiples of 16 bytes"
        );
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let (sizes, strides) = ([columns as u64, rows as u64], [pitch as u64 * 2]);
        let narrow = |x: usize| u32::try_from(x).expect("a box of at most 256 rows and columns");
        let (box_sizes, steps) = ([narrow(box_columns), narrow(box_rows)], [1, 1]);
        let swizzle = match box_columns {
            64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            32 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            _ => panic!("boxes of 32 or 64 columns"),
        };
        // SAFETY: all arrays have two entries, of strides one; the map is an output. It is a description: nothing is read
        // through it here.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                2,
                block.address as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                box_sizes.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .map_err(|error| failed("a tensor map", error))?;
        Ok(TensorMap(map))
    }
}

/// Opens the driver's library and counts its devices.
///
/// # Errors
/// [`CudaError::NoDriver`], or what the driver says; it says nothing where there is none to count.
pub(crate) fn device_count() -> Result<usize, CudaError> {
    // SAFETY: it opens the driver's library by its usual names and closes it again.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    match result::init() {
        Ok(()) => {}
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Ok(0),
        Err(error) => return Err(failed("cuInit", error)),
    }
    let count = result::device::get_count();
    let count = count.map_err(|error| failed("the count of devices", error))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// A copy with nothing in it.
fn empty_copy() -> sys::CUDA_MEMCPY2D {
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: std::ptr::null(),
        srcDevice: 0,
        srcArray: std::ptr::null_mut(),
        srcPitch: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: std::ptr::null_mut(),
        dstDevice: 0,
        dstArray: std::ptr::null_mut(),
        dstPitch: 0,
        WidthInBytes: 0,
        Height: 0,
    }
}

fn failed(what: &'static str, error: DriverError) -> CudaError {
    let message = match error.error_string() {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => format!("error {}", error.0 as i32),
    };
    CudaError::Driver { what, message }
}
