//! The devices: the only file that names them.
//!
//! The f64 reference stands in for a device: its numbers are right and it is slow, since it runs a prompt from its start
//! for every piece.

use std::ops::Range;
use std::sync::Arc;

use descant_decision::{Encoded, Logits};
use descant_model::reference;
use descant_model::{Backend, Capacity, Defect, Head, HeadRun, Saved, Segment, Slot};
use descant_release::{HeadConfig, LoadError, ModelConfig, Release};

use crate::args::Compute;
use crate::failure::Failure;

pub(crate) struct Device {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) head: Option<Arc<dyn Head>>,
}

pub(crate) fn load(
    release: &Arc<Release>,
    _compute: &Compute,
    positions: usize,
) -> Result<Device, Failure> {
    let backend = Box::new(Judge {
        release: Arc::clone(release),
        slots: vec![vec![]; 2],
        last: vec![],
        positions,
    });
    let head = release.head().map(|_| {
        Arc::new(JudgeHead {
            release: Arc::clone(release),
        }) as Arc<dyn Head>
    });
    Ok(Device { backend, head })
}

/// Memory that a model takes once it is loaded.
pub(crate) struct Memory {
    pub(crate) items: Vec<(&'static str, usize)>,
}

impl Memory {
    pub(crate) fn total(&self) -> usize {
        self.items.iter().map(|(_, bytes)| bytes).sum()
    }
}

pub(crate) fn memory(
    _config: &ModelConfig,
    _head: Option<&HeadConfig>,
    _positions: usize,
) -> Memory {
    Memory { items: vec![] }
}

struct Judge {
    release: Arc<Release>,
    slots: Vec<Vec<u32>>,
    last: Vec<f32>,
    positions: usize,
}
impl Backend for Judge {
    fn config(&self) -> &ModelConfig {
        self.release.config()
    }
    fn capacity(&self) -> Capacity {
        Capacity {
            slots: 2,
            positions: self.positions,
            rows: 1024,
        }
    }
    fn reset(&mut self, slot: Slot) {
        self.slots[slot.0].clear();
    }
    fn run(&mut self, round: &[Segment<'_>]) -> Result<(), Defect> {
        self.last.clear();
        for s in round {
            self.slots[s.slot.0].extend_from_slice(s.tokens);
            let t = reference::Backbone::new(&self.release)
                .run(&self.slots[s.slot.0])
                .map_err(failed)?;
            let w = self.release.config().hidden;
            self.last
                .extend(t.hidden[s.start * w..].iter().map(|x| *x as f32));
        }
        Ok(())
    }
    fn hidden(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), Defect> {
        let w = self.release.config().hidden;
        out.copy_from_slice(&self.last[rows.start * w..rows.end * w]);
        Ok(())
    }
    fn logits(&mut self, _: &[usize], _: &mut [f32]) -> Result<(), Defect> {
        Err(Defect::Device {
            message: "the reference gives no tokens".into(),
        })
    }
    fn save(&mut self, _: Slot, _: usize) -> Result<Saved, Defect> {
        Err(Defect::Device {
            message: "no".into(),
        })
    }
    fn load(&mut self, _: Slot, _: &[&Saved]) -> Result<(), Defect> {
        Err(Defect::Device {
            message: "no".into(),
        })
    }
}
struct JudgeHead {
    release: Arc<Release>,
}
struct JudgeRun {
    release: Arc<Release>,
    encoded: Arc<Encoded>,
    rows: Vec<f64>,
}
impl Head for JudgeHead {
    fn begin(&self, encoded: Arc<Encoded>) -> Box<dyn HeadRun> {
        Box::new(JudgeRun {
            release: Arc::clone(&self.release),
            encoded,
            rows: vec![],
        })
    }
}
impl HeadRun for JudgeRun {
    fn absorb(&mut self, _: usize, hidden: &[f32]) -> Result<(), Defect> {
        self.rows.extend(hidden.iter().map(|x| f64::from(*x)));
        Ok(())
    }
    fn memory(&self, _: Range<usize>) -> Vec<f32> {
        vec![]
    }
    fn preload(&mut self, _: usize, _: &[f32]) {}
    fn finish(self: Box<Self>) -> Result<Logits, Defect> {
        let l = reference::Head::new(
            self.release
                .head()
                .expect("only a release with a head makes one"),
            &*self.release,
        )
        .logits(&self.encoded, &self.rows)
        .map_err(failed)?;
        Ok(l.into_iter()
            .map(|v| v.into_iter().map(|x| x as f32).collect())
            .collect())
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the shape that map_err wants"
)]
fn failed(error: LoadError) -> Defect {
    Defect::Device {
        message: error.to_string(),
    }
}
