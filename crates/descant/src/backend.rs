//! The devices: the only file that names them.
//!
//! What a model takes is summed before it is loaded and compared with what the machine has, so that one that does not fit
//! is refused at once, with the flags that would make it fit.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::available_parallelism;

use descant_cpu::{CpuBackend, CpuHead, Isa, LmHead, Options, Pool, Precision};
use descant_cuda::{CudaBackend, CudaHead, HeadOptions};
use descant_engine::{BudgetFlag, BudgetItem, Settings, check_budget};
use descant_model::{Backend, CHUNK_ROWS, Capacity, Head};
use descant_release::{Dtype, HeadConfig, LayerKind, ModelConfig, Outline, Part, Release};

use crate::args::{self, Compute, DeviceFlag, HeadDevice};
use crate::dummy::Dummy;
use crate::failure::Failure;
use crate::progress::loading;

/// Prompt rows of a round of a command that has the device for itself; longer prompts are run in pieces.
const ROWS: usize = 1024;
/// Prompt rows of a server's round: a token of chat, and a client that leaves, waits for one such piece.
const SERVER_ROWS: usize = 256;
/// See [`cache_rows_min`].
const GPU_CACHE_ROWS_MIN: usize = 512;
/// Prompt rows of a round on a GPU, which needs more of them to be busy.
const GPU_ROWS: usize = 4096;
/// MiB of a server's state cache, unless it is told another number or has a GPU.
const CACHE_MB: usize = 256;
/// Shortest prompt that a suggestion of a smaller `--max-length` leaves room for.
const LENGTH_MIN: u64 = 1024;
/// Fewest rows of a round.
const ROWS_MIN: u64 = CHUNK_ROWS as u64;

/// What a command wants room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Prompts and chats at work at one time.
    pub(crate) slots: usize,
    /// Most tokens of each.
    pub(crate) length: usize,
    /// Prompt rows of a round; a multiple of a chunk.
    pub(crate) rows: usize,
    /// Whether the user said how many rows; otherwise the device decides.
    pub(crate) rows_asked: bool,
    /// Memory of the state cache, in MiB.
    pub(crate) cache_mb: usize,
    /// Whether tokens are generated, so that the output embedding had better be in memory.
    pub(crate) chats: bool,
    /// Whether all of it comes from flags that the user can change, not the length alone.
    pub(crate) is_server: bool,
}

/// Where a model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    Cpu,
    /// A CUDA device by its number.
    Cuda(usize),
}

impl On {
    /// The device of the flags: a GPU computes in bf16, so whoever asks for f32 gets the CPU unless they name the GPU.
    fn of(compute: &Compute) -> Result<On, Failure> {
        let is_f32 = compute.precision == Some(args::Precision::F32);
        match compute.device {
            DeviceFlag::Auto if !is_f32 && descant_cuda::is_present() => Ok(On::Cuda(0)),
            DeviceFlag::Auto | DeviceFlag::Cpu => Ok(On::Cpu),
            DeviceFlag::Cuda(_) if is_f32 => Err(Failure::GpuPrecision),
            DeviceFlag::Cuda(number) => Ok(On::Cuda(number)),
        }
    }
}

/// Shortest prefix of which a server on the device that the flags mean keeps a state, in rows.
///
/// A state of a published model takes 50 MB and more however short it is, which a GPU may not have to spare: what a later prompt may
/// save must be worth what a longer state would save in its place.
///
/// # Errors
/// As [`load`].
pub(crate) fn cache_rows_min(compute: &Compute) -> Result<usize, Failure> {
    Ok(match On::of(compute)? {
        On::Cpu => Settings::default().cache_rows_min,
        On::Cuda(_) => GPU_CACHE_ROWS_MIN,
    })
}

/// A model on a device.
pub(crate) struct Device {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) head: Option<Arc<dyn Head>>,
}

impl Room {
    /// Room for one prompt after the other, of a command that keeps no states since most runs ask once.
    pub(crate) fn for_one(length: usize) -> Room {
        Room {
            slots: 1,
            length,
            rows: ROWS,
            rows_asked: false,
            cache_mb: 0,
            chats: false,
            is_server: false,
        }
    }

    /// Room for a server's flags, on the device that they mean.
    ///
    /// # Errors
    /// As [`load`].
    pub(crate) fn for_server(flags: &args::Serve) -> Result<Room, Failure> {
        let cache_mb = match (flags.cache_mb, On::of(&flags.compute)?) {
            (Some(cache_mb), _) => cache_mb,
            (None, On::Cpu) => CACHE_MB,
            // A state of a published model takes 50 MB and more.
            (None, On::Cuda(ordinal)) => {
                let free = descant_cuda::free_bytes(ordinal)?;
                let limit = flags.compute.memory_limit.unwrap_or(free).min(free);
                let share = usize::try_from((limit >> 20) / 16).unwrap_or(usize::MAX);
                share.max(CACHE_MB)
            }
        };
        Ok(Room {
            slots: flags.slots,
            length: flags.length.max_length,
            rows: flags.max_rows.unwrap_or(SERVER_ROWS),
            rows_asked: flags.max_rows.is_some(),
            cache_mb,
            chats: !flags.no_chat,
            is_server: true,
        })
    }

    /// Memory of the state cache, in bytes.
    pub(crate) fn cache_bytes(self) -> usize {
        self.cache_mb << 20
    }

    /// The room on a device.
    fn on(self, on: On) -> Room {
        match on {
            On::Cuda(_) if !self.rows_asked => Room {
                rows: GPU_ROWS,
                ..self
            },
            _ => self,
        }
    }

    fn capacity(self) -> Capacity {
        let positions = self.length.next_multiple_of(CHUNK_ROWS);
        Capacity {
            slots: self.slots,
            positions,
            rows: positions.min(self.rows) + self.slots,
        }
    }

    fn flags(self) -> Vec<BudgetFlag> {
        let flag = |name, value, least, step| BudgetFlag {
            name,
            value: value as u64,
            least,
            step,
        };
        let length = flag("--max-length", self.length, LENGTH_MIN, CHUNK_ROWS as u64);
        match self.is_server {
            true => vec![
                flag("--cache-mb", self.cache_mb, 0, 1),
                flag("--slots", self.slots, 1, 1),
                flag("--max-rows", self.rows, ROWS_MIN, CHUNK_ROWS as u64),
                length,
            ],
            false => vec![length],
        }
    }

    /// The same room with other values of [`Room::flags`].
    fn with(self, values: &[u64]) -> Room {
        let value = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        match *values {
            [cache_mb, slots, rows, length] => Room {
                slots: value(slots),
                length: value(length),
                rows: value(rows),
                cache_mb: value(cache_mb),
                ..self
            },
            [length] => Room {
                length: value(length),
                ..self
            },
            _ => self,
        }
    }
}

/// Loads a release's weights.
///
/// # Errors
/// [`Failure::OverBudget`] before anything is read, [`Failure::Isa`], [`Failure::Cuda`], or what the loader says.
pub(crate) fn load(
    release: &Arc<Release>,
    compute: &Compute,
    room: Room,
    settings: &Settings,
) -> Result<Device, Failure> {
    let on = On::of(compute)?;
    let (outline, room) = (release.outline(), room.on(on));
    check_room(&outline, compute, on, room, settings)?;
    let isa = match &compute.isa {
        Some(name) => Isa::named(name).map_err(Failure::Isa)?,
        None => Isa::detect(),
    };
    let pool = Pool::with_isa(threads(compute), isa);
    let pool = pool.map_err(|source| Failure::Start {
        what: "--threads",
        source: source.into(),
    })?;
    let pool = Arc::new(pool);
    let device = loading(release, || match on {
        On::Cpu => {
            let options = options(compute, room);
            let backend = CpuBackend::load(Arc::clone(release), options, Arc::clone(&pool))?;
            Ok::<_, Failure>(Device {
                backend: Box::new(backend),
                head: load_head(release, &pool)?,
            })
        }
        On::Cuda(ordinal) => load_on_gpu(release, compute, ordinal, (room, settings), &pool),
    })?;
    // All that is needed was copied: the rows of the embeddings are read again as they are wanted.
    release.discard_pages();
    Ok(device)
}

/// Makes a shape's weights on a GPU.
///
/// # Errors
/// [`Failure::DummyDevice`] if the flags mean another device, [`Failure::OverBudget`], [`Failure::Cuda`].
pub(crate) fn load_dummy(
    dummy: &Dummy,
    compute: &Compute,
    room: Room,
    settings: &Settings,
) -> Result<Device, Failure> {
    let on = On::of(compute)?;
    let (On::Cuda(ordinal), HeadDevice::Auto) = (on, compute.head_device) else {
        return Err(Failure::DummyDevice);
    };
    let room = room.on(on);
    check_room(dummy.outline(), compute, on, room, settings)?;
    let capacity = room.capacity();
    let options = descant_cuda::Options {
        ordinal,
        capacity,
        snapshot_bytes: room.cache_bytes(),
        portable: false,
    };
    let (backend, head) = dummy.load(options, head_options(ordinal, capacity, settings))?;
    tracing::warn!(
        device = backend.device_name(),
        model = dummy.label(),
        "made"
    );
    Ok(Device {
        backend: Box::new(backend),
        head: Some(Arc::new(head)),
    })
}

fn load_on_gpu(
    release: &Arc<Release>,
    compute: &Compute,
    ordinal: usize,
    (room, settings): (Room, &Settings),
    pool: &Pool,
) -> Result<Device, Failure> {
    let capacity = room.capacity();
    let options = descant_cuda::Options {
        ordinal,
        capacity,
        snapshot_bytes: room.cache_bytes(),
        portable: false,
    };
    let mut backend = CudaBackend::load(release, options)?;
    tracing::info!(device = backend.device_name(), "the model is on a GPU");
    let head = match (release.head(), compute.head_device) {
        (Some(config), HeadDevice::Auto) => {
            let source = Arc::clone(release) as Arc<dyn descant_model::HeadWeights>;
            let options = head_options(ordinal, capacity, settings);
            let is_its_own = reads_own_rows(release)?;
            let head = CudaHead::load_beside(&mut backend, config, source, options, is_its_own)?;
            Some(Arc::new(head) as Arc<dyn Head>)
        }
        (Some(_), HeadDevice::Cpu) => load_head(release, pool)?,
        (None, _) => None,
    };
    Ok(Device {
        backend: Box::new(backend),
        head,
    })
}

/// Whether the rows of the lexical prior are those that the backend has on its device, which are bf16. Rows beside the head
/// that take their place are read from the file.
pub(crate) fn reads_own_rows(release: &Release) -> Result<bool, Failure> {
    let (rows, table) = (release.lexical_embedding()?, release.output_embedding()?);
    Ok(std::ptr::eq(rows.bytes, table.bytes) && table.dtype == Dtype::BF16)
}

/// What the head on a GPU reserves beside a backend of that capacity.
fn head_options(ordinal: usize, capacity: Capacity, settings: &Settings) -> HeadOptions {
    HeadOptions {
        ordinal,
        positions: capacity.positions,
        runs: settings.head_runs_max(capacity.slots),
        staged_rows: settings.head_rows_max().min(2 * capacity.rows),
        spans: HeadOptions::spans_of(capacity.positions),
        portable: false,
    }
}

/// The device and the precision of its activations, as receipts and figures name them.
pub(crate) fn name(compute: &Compute) -> String {
    // A GPU that cannot be used is reported when the model is loaded.
    let name = match (On::of(compute).unwrap_or(On::Cpu), precision(compute)) {
        (On::Cpu, Precision::Bf16) => "cpu bf16",
        (On::Cpu, Precision::F32) => "cpu f32",
        (On::Cuda(_), _) if compute.head_device == HeadDevice::Cpu => "cuda bf16, head on cpu",
        (On::Cuda(_), _) => "cuda bf16",
    };
    name.to_owned()
}

/// The head on the CPU, if the release has one.
fn load_head(release: &Arc<Release>, pool: &Pool) -> Result<Option<Arc<dyn Head>>, Failure> {
    let Some(config) = release.head() else {
        return Ok(None);
    };
    let source = Arc::clone(release) as Arc<dyn descant_model::HeadWeights>;
    Ok(Some(Arc::new(CpuHead::load(config, source, pool)?)))
}

fn options(compute: &Compute, room: Room) -> Options {
    Options {
        precision: precision(compute),
        capacity: room.capacity(),
        lm_head: match room.chats {
            true => LmHead::Packed,
            false => LmHead::Mapped,
        },
    }
}

/// Precision on a CPU.
fn precision(compute: &Compute) -> Precision {
    match compute.precision {
        Some(args::Precision::Bf16) => Precision::Bf16,
        Some(args::Precision::F32) | None => Precision::F32,
    }
}

/// How numbers are computed, as journals note it: what their bits depend on beside the model.
pub(crate) fn arithmetic(compute: &Compute) -> Result<&'static str, Failure> {
    Ok(match (On::of(compute)?, precision(compute)) {
        (On::Cpu, Precision::Bf16) => "Bf16",
        (On::Cpu, Precision::F32) => "F32",
        (On::Cuda(_), _) if compute.head_device == HeadDevice::Cpu => "Bf16 on CUDA",
        (On::Cuda(_), _) => "Bf16 on CUDA, head too",
    })
}

fn threads(compute: &Compute) -> usize {
    compute
        .threads
        .unwrap_or_else(|| available_parallelism().map_or(1, NonZeroUsize::get))
}

/// What a model takes once it is loaded, item by item; on a GPU its own memory's items first.
pub(crate) fn memory(
    outline: &Outline,
    compute: &Compute,
    room: Room,
    settings: &Settings,
) -> Vec<BudgetItem> {
    // A GPU that cannot be used is reported when something is to run on it.
    let on = On::of(compute).unwrap_or(On::Cpu);
    both_memories(outline, compute, on, room.on(on), settings).concat()
}

/// What the backend takes where it computes, and what else the model takes in the system's memory.
fn both_memories(
    outline: &Outline,
    compute: &Compute,
    on: On,
    room: Room,
    settings: &Settings,
) -> [Vec<BudgetItem>; 2] {
    let Outline {
        config, head, plan, ..
    } = outline;
    let capacity = room.capacity();
    let settings = Settings {
        cache_bytes: match (on, head) {
            (On::Cpu, _) => room.cache_bytes(),
            (On::Cuda(_), Some(head)) if compute.head_device == HeadDevice::Cpu => {
                host_share(config, head, room.cache_bytes())
            }
            (On::Cuda(_), _) => 0,
        },
        ..settings.clone()
    };
    let mut device: Vec<BudgetItem> = match on {
        On::Cpu => descant_cpu::memory(config, &options(compute, room), threads(compute))
            .iter()
            .map(|item| budget_item(item.name, item.bytes))
            .collect(),
        On::Cuda(_) => descant_cuda::memory(config, capacity, room.cache_bytes())
            .iter()
            .map(|item| budget_item(&format!("{} (GPU)", item.name), item.bytes))
            .collect(),
    };
    let mut host = Vec::new();
    let mut width = None;
    match (on, head) {
        (On::Cuda(ordinal), Some(head)) if compute.head_device == HeadDevice::Auto => {
            let options = head_options(ordinal, capacity, &settings);
            let items = descant_cuda::head_memory(head, &options);
            let item = |item: &descant_cuda::MemoryItem| {
                budget_item(&format!("{} (GPU)", item.name), item.bytes)
            };
            device.extend(items.iter().map(item));
        }
        (_, Some(head)) => {
            let parameters = plan.part(Part::Head).map(|tensor| tensor.parameters());
            host.push(budget_item("head weights", 2 * parameters.sum::<usize>()));
            width = Some(head.width);
        }
        (_, None) => {}
    }
    let ModelConfig { hidden, vocab, .. } = *config;
    host.extend(settings.budget(capacity, hidden, vocab, width));
    [device, host].map(|mut items| {
        items.retain(|item| item.bytes > 0);
        items
    })
}

/// Of the bytes of snapshots on a GPU, the most that are in the system's memory where the head is on the CPU: its memory rows, of
/// which there are as many as KV rows.
fn host_share(config: &ModelConfig, head: &HeadConfig, bytes: usize) -> usize {
    let attention = &config.attention;
    let layers = config.layers.iter();
    let layers = layers.filter(|layer| **layer == LayerKind::FullAttention);
    let kv_row = layers.count() * 2 * attention.kv_heads * attention.head_dim * size_of::<u16>();
    let memory_row = head.width * size_of::<f32>();
    (bytes as u128 * memory_row as u128 / (memory_row + kv_row) as u128) as usize
}

fn budget_item(name: &str, bytes: usize) -> BudgetItem {
    BudgetItem {
        name: name.to_owned(),
        bytes: bytes as u64,
    }
}

/// Compares what a model takes with the memory that there is: on a GPU both memories for themselves, of which
/// `--memory-limit` bounds the GPU's.
fn check_room(
    outline: &Outline,
    compute: &Compute,
    on: On,
    room: Room,
    settings: &Settings,
) -> Result<(), Failure> {
    let check = |limit: Option<u64>, pick: &dyn Fn([Vec<BudgetItem>; 2]) -> Vec<BudgetItem>| {
        let Some(limit) = limit else {
            return Ok(());
        };
        let items = |values: &[u64]| {
            pick(both_memories(
                outline,
                compute,
                on,
                room.with(values),
                settings,
            ))
        };
        match check_budget(&room.flags(), limit, items) {
            Ok(_) => Ok(()),
            Err(over) => Err(Failure::OverBudget(over)),
        }
    };
    match on {
        On::Cpu => check(compute.memory_limit.or_else(available_bytes), &|both| {
            both.concat()
        }),
        On::Cuda(ordinal) => {
            let free = descant_cuda::free_bytes(ordinal)?;
            let limit = compute.memory_limit.map_or(free, |most| most.min(free));
            check(Some(limit), &|[device, _]| device)?;
            check(available_bytes(), &|[_, host]| host)
        }
    }
}

/// Memory that the system can still give, in bytes; none where it does not say.
fn available_bytes() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let system = read("/proc/meminfo").and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim()
            .strip_suffix("kB")?
            .trim()
            .parse::<u64>()
            .ok()
            .map(|kib| kib * 1024)
    });
    // A container may have less; files that are cached count as used there but are given back.
    let of_group = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse().ok());
    match (system, of_group) {
        (Some(system), Some(group)) => Some(system.min(group)),
        (system, group) => system.or(group),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[test]
    fn a_room_is_cut_at_chunks_and_leaves_a_row_for_every_slot() {
        let room = Room {
            slots: 4,
            length: 1000,
            is_server: true,
            ..Room::for_one(1)
        };
        assert_eq!(
            room.capacity(),
            Capacity {
                slots: 4,
                positions: 1024,
                rows: 1028
            }
        );
        let one = Room::for_one(2);
        assert_eq!(
            one.capacity(),
            Capacity {
                slots: 1,
                positions: 64,
                rows: 65
            }
        );
    }

    #[test]
    fn the_help_names_the_shortest_states_that_are_kept() {
        let shortest = |device: &str| {
            let cli = args::Cli::try_parse_from(["descant", "serve", "--device", device]).unwrap();
            let args::Command::Serve(serve) = cli.command else {
                panic!("it is serve");
            };
            cache_rows_min(&serve.compute).unwrap()
        };
        let (cpu, gpu) = (shortest("cpu"), shortest("cuda"));
        assert!(cpu.is_multiple_of(CHUNK_ROWS) && gpu.is_multiple_of(CHUNK_ROWS));
        let help = args::Cli::command();
        let serve = help.find_subcommand("serve").unwrap();
        let flag = serve
            .get_arguments()
            .find(|flag| flag.get_long() == Some("cache-mb"));
        let help = flag.and_then(clap::Arg::get_help).unwrap().to_string();
        let wanted = format!("A GPU keeps states of {gpu} tokens and more, a CPU of {cpu}");
        assert!(help.contains(&wanted), "{help}");
    }

    #[test]
    fn advice_changes_what_its_flags_say() {
        for room in [
            Room::for_one(5000),
            Room {
                is_server: true,
                ..Room::for_one(5000)
            },
        ] {
            let values: Vec<u64> = room.flags().iter().map(|flag| flag.value).collect();
            assert_eq!(room.with(&values), room);
            let smaller: Vec<u64> = room.flags().iter().map(|flag| flag.least).collect();
            assert_eq!(room.with(&smaller).length, 1024);
        }
    }
}
