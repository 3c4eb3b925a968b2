//! Why there is no backend on a device.

use std::error::Error;
use std::fmt;

use descant_model::Defect;
use descant_release::LoadError;

/// Why a device cannot be used, or a model not be put on it.
#[derive(Debug)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver gave an error.
    Driver {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        message: String,
    },
    /// The release cannot be read.
    Load(LoadError),
    /// The device has not enough free memory.
    Memory {
        /// What it was for.
        what: &'static str,
        /// How much was asked for.
        bytes: usize,
    },
    /// There is no device of this number.
    NoDevice {
        /// The number that was asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The driver's library is not on this machine.
    NoDriver,
    /// Copies of a slot did not come back as they were.
    Snapshots,
    /// The device is too old for the kernels.
    TooOld {
        /// Its name.
        name: String,
        /// Its compute capability.
        capability: (i32, i32),
    },
    /// A size of the model that the kernels do not take.
    Unsupported {
        /// The size's name.
        what: &'static str,
        /// Its value.
        found: usize,
        /// What it must be.
        wanted: &'static str,
    },
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CudaError::Driver { what, message } => {
                write!(f, "the CUDA driver says of {what}: {message}")
            }
            CudaError::Load(error) => error.fmt(f),
            CudaError::Memory { what, bytes } => {
                write!(
                    f,
                    "the device has no {} MiB free for {what}",
                    bytes.div_ceil(1 << 20)
                )
            }
            CudaError::NoDevice { count: 0, .. } => f.write_str("the CUDA driver finds no device"),
            CudaError::NoDevice { ordinal, count } => {
                write!(
                    f,
                    "there is no CUDA device {ordinal}; there are {count}, counted from 0"
                )
            }
            CudaError::NoDriver => {
                f.write_str("there is no CUDA driver on this machine (libcuda.so.1 was not found)")
            }
            CudaError::Snapshots => f.write_str(
                "copies of states did not come back from the device's memory as they were; --cache-mb 0 does without them",
            ),
            CudaError::TooOld {
                name,
                capability: (major, minor),
            } => write!(
                f,
                "{name} has compute capability {major}.{minor}; the kernels need 8.0 (Ampere) or later"
            ),
            CudaError::Unsupported {
                what,
                found,
                wanted,
            } => {
                write!(
                    f,
                    "the CUDA kernels do not take a {what} of {found}: it must be {wanted}"
                )
            }
        }
    }
}

impl Error for CudaError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            CudaError::Load(error) => Some(error),
            _ => None,
        }
    }
}

impl From<LoadError> for CudaError {
    fn from(error: LoadError) -> CudaError {
        CudaError::Load(error)
    }
}

impl From<CudaError> for Defect {
    fn from(error: CudaError) -> Defect {
        Defect::Device {
            message: error.to_string(),
        }
    }
}
