//! Which vector instructions the machine has, as values: who holds an [`Avx2`] has the proof that they exist.
//!
//! Every path gives the same bits, so the choice is one of speed alone; tests choose a path with `DESCANT_ISA`.

use std::fmt;

#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use super::avx512::{Avx512, Avx512Bf16};
use super::portable::Portable;
use super::simd::Simd;

/// The vector instructions that kernels run on. Sorted from the most widely available to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust on arrays of sixteen; a compiler for NEON makes vectors of them.
    Portable(Portable),
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// AVX-512 with the bf16 dot product.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(Avx512Bf16),
}

/// A wish for instructions that this machine, or this program, does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsaMissing {
    /// What was asked for.
    pub name: String,
}

impl fmt::Display for IsaMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let best = Isa::detect().name();
        write!(
            f,
            "instruction set {:?} is not available here; known are portable, avx2, avx512 and avx512bf16, the best of \
             this machine is {best}",
            self.name
        )
    }
}

impl std::error::Error for IsaMissing {}

impl Isa {
    /// The fastest path of this machine.
    ///
    /// The bf16 dot product is taken on AMD's processors only: there it does twice as much as two multiply-adds (Zen 4),
    /// on Intel's half as much (Sapphire Rapids, 66 against 113 GFLOP/s a core).
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            if let (Some(isa), true) = (Avx512Bf16::detect(), is_amd()) {
                return Isa::Avx512Bf16(isa);
            }
            if let Some(isa) = Avx512::detect() {
                return Isa::Avx512(isa);
            }
            if let Some(isa) = Avx2::detect() {
                return Isa::Avx2(isa);
            }
        }
        Isa::Portable(Portable)
    }

    /// A path by its name: `portable`, `avx2`, `avx512`, `avx512bf16`.
    ///
    /// # Errors
    /// [`IsaMissing`] if the name is not known or the machine lacks the instructions.
    pub fn named(name: &str) -> Result<Isa, IsaMissing> {
        let found = match name {
            "portable" => Some(Isa::Portable(Portable)),
            #[cfg(target_arch = "x86_64")]
            "avx2" => Avx2::detect().map(Isa::Avx2),
            #[cfg(target_arch = "x86_64")]
            "avx512" => Avx512::detect().map(Isa::Avx512),
            #[cfg(target_arch = "x86_64")]
            "avx512bf16" => Avx512Bf16::detect().map(Isa::Avx512Bf16),
            _ => None,
        };
        found.ok_or_else(|| IsaMissing {
            name: name.to_owned(),
        })
    }

    /// The path that the variable `DESCANT_ISA` names, or the fastest if it is not set.
    ///
    /// # Errors
    /// As [`Isa::named`].
    pub fn from_env() -> Result<Isa, IsaMissing> {
        match std::env::var("DESCANT_ISA") {
            Ok(name) => Isa::named(&name),
            Err(_) => Ok(Isa::detect()),
        }
    }

    /// Every path that this machine has, slowest first.
    pub fn all() -> Vec<Isa> {
        ["portable", "avx2", "avx512", "avx512bf16"]
            .iter()
            .filter_map(|name| Isa::named(name).ok())
            .collect()
    }

    /// Its name, as [`Isa::named`] takes it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16(_) => "avx512bf16",
        }
    }

    /// Runs a kernel compiled for these instructions.
    pub(crate) fn call<K: Kernel>(self, kernel: K) -> K::Out {
        match self {
            Isa::Portable(isa) => kernel.run(isa),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(isa) => isa.call(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(isa) => isa.call(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16(isa) => isa.base().call(kernel),
        }
    }
}

/// Whether the processor says that AMD made it.
#[cfg(target_arch = "x86_64")]
fn is_amd() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0);
    [leaf.ebx, leaf.edx, leaf.ecx]
        .map(u32::to_le_bytes)
        .concat()
        == b"AuthenticAMD"
}

/// A piece of arithmetic that is compiled once for each instruction set. Its `run` must be `#[inline(always)]`, and so
/// must what it calls in its loops: only what is inlined is compiled with the instructions.
pub(crate) trait Kernel {
    /// What it gives.
    type Out;

    /// Runs it.
    fn run<S: Simd>(self, s: S) -> Self::Out;
}

/// Defines a function `name(isa, arguments…)` whose body is compiled for each instruction set and uses the vectors of
/// `s`. Borrowed arguments carry the lifetime `'a`.
macro_rules! kernel {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<'a>($s:ident $(, $arg:ident: $type:ty)* $(,)?) $(-> $out:ty)? $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name<'a>(isa: $crate::arch::Isa $(, $arg: $type)*) $(-> $out)? {
            struct Arguments<'a> {
                $($arg: $type,)*
                lifetime: std::marker::PhantomData<&'a ()>,
            }
            impl<'a> $crate::arch::Kernel for Arguments<'a> {
                type Out = kernel!(@out $($out)?);

                #[inline(always)]
                fn run<S: $crate::arch::Simd>(self, $s: S) -> Self::Out {
                    let Arguments { $($arg,)* lifetime: _ } = self;
                    $body
                }
            }
            isa.call(Arguments { $($arg,)* lifetime: std::marker::PhantomData })
        }
    };
    (@out) => { () };
    (@out $out:ty) => { $out };
}
pub(crate) use kernel;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_the_name_that_finds_it() {
        let all = Isa::all();
        assert_eq!(all[0].name(), "portable");
        for isa in all {
            assert_eq!(Isa::named(isa.name()), Ok(isa));
        }
    }

    #[test]
    fn an_unknown_path_is_refused_by_name() {
        let missing = Isa::named("mmx").unwrap_err();
        assert!(missing.to_string().contains("\"mmx\""), "{missing}");
    }
}
