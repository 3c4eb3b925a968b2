//! Times on the device: the ceilings of products and copies, and the parts of a round.

use std::cell::RefCell;

use descant_model::{Choice, Segment};

use crate::backend::CudaBackend;
use crate::driver::{Arena, Block, Gpu, Mark};
use crate::error::CudaError;
use crate::launch::{Kernels, Product};

/// What the device reaches at most, measured with the kernels of this program.
#[derive(Clone, Copy, Debug)]
pub struct Ceilings {
    /// A square product of 8192 in bf16, in TFLOP/s: the median of its runs.
    pub product_tflops: f64,
    /// A copy of 2 GiB, bytes read and written, in TB/s: the median of its runs.
    pub copy_tbps: f64,
}

/// What a part of a round takes.
#[derive(Clone, Copy, Debug)]
pub struct PartTime {
    /// Which part.
    pub name: &'static str,
    /// Times that it ran.
    pub count: usize,
    /// All of them together, in milliseconds.
    pub ms: f64,
    /// Operations that it must do.
    pub flop: f64,
    /// Bytes that it must move through device memory at least.
    pub bytes: f64,
}

/// Marks of a round in the making.
#[derive(Default)]
pub(crate) struct Profile {
    parts: RefCell<Vec<(Part, Mark)>>,
}

/// A part with its work.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) flop: f64,
    pub(crate) bytes: f64,
}

impl Profile {
    /// Notes that what was queued since the last mark is a part.
    pub(crate) fn note(&self, gpu: &Gpu, part: Part) -> Result<(), CudaError> {
        let mark = gpu.mark()?;
        self.parts.borrow_mut().push((part, mark));
        Ok(())
    }

    /// The parts by name, in the order in which they first came.
    pub(crate) fn times(self, start: &Mark) -> Result<Vec<PartTime>, CudaError> {
        let (mut times, mut before): (Vec<PartTime>, _) = (Vec::new(), start);
        let parts = self.parts.into_inner();
        for (part, mark) in &parts {
            let ms = before.ms_until(mark)?;
            before = mark;
            let index = times
                .iter()
                .position(|time| time.name == part.name)
                .unwrap_or_else(|| {
                    times.push(PartTime {
                        name: part.name,
                        count: 0,
                        ms: 0.0,
                        flop: 0.0,
                        bytes: 0.0,
                    });
                    times.len() - 1
                });
            let time = &mut times[index];
            (time.count, time.ms) = (time.count + 1, time.ms + ms);
            (time.flop, time.bytes) = (time.flop + part.flop, time.bytes + part.bytes);
        }
        Ok(times)
    }
}

impl CudaBackend {
    /// Runs a round and times its parts. The marks between them cost a little: the parts sum to more than a round.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// As [`descant_model::Backend::run`].
    pub fn run_in_parts(&mut self, round: &[Segment<'_>]) -> Result<Vec<PartTime>, CudaError> {
        self.bind()?;
        let (profile, start) = (Profile::default(), self.gpu.mark()?);
        self.run_round(round, Some(&profile))?;
        profile.times(&start)
    }

    /// Chooses tokens as [`descant_model::Backend::sample`] does, and times the choice alone, in milliseconds: from the logits on
    /// the device to the ids in host memory.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// As [`descant_model::Backend::sample`].
    pub fn time_choices(&self, rows: &[usize], choices: &[Choice<'_>]) -> Result<f64, CudaError> {
        let mut ms = 0.0;
        self.draw_by(rows, choices, |draw| {
            self.gpu.wait()?;
            let start = self.gpu.mark()?;
            let tokens = draw()?;
            ms += start.ms_until(&self.gpu.mark()?)?;
            Ok(tokens)
        })?;
        Ok(ms)
    }

    /// Does something while products of 4096 x 4096 x 4096 are queued all the time, as another stream's prompt would have it, in
    /// memory of their own that is given back.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// If `work` does.
    pub fn beside_products<T: Send>(
        &self,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, CudaError> {
        const SIDE: usize = 4096;
        const QUEUED: usize = 64;
        self.bind()?;
        let (gpu, kernels) = (&self.gpu, &self.kernels);
        let square = Square::new(gpu, kernels, SIDE)?;
        let queue = || (0..QUEUED).try_for_each(|_| kernels.gemm.run(gpu, square.product()));
        std::thread::scope(|scope| {
            queue()?;
            let worker = scope.spawn(work);
            while !worker.is_finished() {
                queue()?;
                gpu.wait()?;
            }
            Ok(worker.join().expect("the work does not panic"))
        })
    }

    /// Measures the ceilings, in memory of its own that is given back.
    ///
    /// # Errors
    /// The device's.
    pub fn ceilings(&self) -> Result<Ceilings, CudaError> {
        const SIDE: usize = 8192;
        const COPIED: usize = 1 << 30;
        self.bind()?;
        let (gpu, kernels) = (&self.gpu, &self.kernels);
        let square = Square::new(gpu, kernels, SIDE)?;
        let product_ms = median_ms(gpu, 15, || kernels.gemm.run(gpu, square.product()))?;
        let mut arena = Arena::new(gpu, "a measurement", 2 * Arena::bytes_for::<u16>(COPIED))?;
        let [from, to]: [Block<u16>; 2] = [(); 2].map(|()| arena.take(COPIED));
        kernels.rows.fill_bf16(gpu, &from, 3, 1.0)?;
        let copy_ms = median_ms(gpu, 15, || kernels.rows.copy(gpu, &from, &to))?;
        Ok(Ceilings {
            product_tflops: 2.0 * (SIDE as f64).powi(3) / product_ms / 1e9,
            copy_tbps: 4.0 * COPIED as f64 / copy_ms / 1e9,
        })
    }
}

/// Operands of a square product, random numbers.
struct Square {
    x: Block<u16>,
    weight: Block<u16>,
    out: Block<u16>,
    side: usize,
}

impl Square {
    fn new(gpu: &Gpu, kernels: &Kernels, side: usize) -> Result<Square, CudaError> {
        let bytes = 3 * Arena::bytes_for::<u16>(side * side);
        let mut arena = Arena::new(gpu, "a measurement", bytes)?;
        let [x, weight, out] = [(); 3].map(|()| arena.take(side * side));
        kernels.rows.fill_bf16(gpu, &x, 1, 1.0)?;
        kernels.rows.fill_bf16(gpu, &weight, 2, 0.02)?;
        // A product fetches its weight while the launch before it ends, so that must not be the one that makes it.
        gpu.wait()?;
        Ok(Square {
            x,
            weight,
            out,
            side,
        })
    }

    fn product(&self) -> Product<'_> {
        Product {
            x: &self.x,
            weight: &self.weight,
            out: &self.out,
            rows: self.side,
            inputs: self.side,
            outputs: self.side,
            swiglu: false,
        }
    }
}

fn median_ms(
    gpu: &Gpu,
    runs: usize,
    mut run: impl FnMut() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    run()?;
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = gpu.mark()?;
        run()?;
        times.push(start.ms_until(&gpu.mark()?)?);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[runs / 2])
}
