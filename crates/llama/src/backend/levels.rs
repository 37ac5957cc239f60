//! The level of instructions that kernels use: chosen once, from the processor, and perhaps from what the host forces.

use std::fmt;

use once_cell::sync::OnceCell;
use parking_lot::Mutex;

use foredraft_base::error::{Error, Result};
#[cfg(own_kernels)]
use foredraft_native as native;

/// The variable that forces a level in every engine of the process.
const VARIABLE: &str = "FOREDRAFT_CPU_LEVEL";

foredraft_base::words! {
    /// A set of instructions that kernels are compiled for, from the least to the best. On other processors than x86-64 and AArch64 there is
    /// `Generic` alone, with ggml's kernels.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum CpuLevel {
        /// ggml's kernels, for processors that this library has no kernels for.
        Generic => "generic",
        /// AVX2, FMA, F16C and BMI2: Intel since 2013, AMD since 2017.
        Avx2 => "avx2",
        /// AVX-VNNI too.
        AvxVnni => "avx-vnni",
        /// AVX-512 with VNNI.
        Avx512Vnni => "avx512-vnni",
        /// AMX too, for products with several tokens.
        Amx => "amx",
        /// AArch64's baseline.
        Neon => "neon",
        /// Neon with dot products of bytes: most processors since 2018.
        NeonDotprod => "neon-dotprod",
        /// Products of matrices of bytes too: most processors since 2021.
        NeonI8mm => "neon-i8mm",
    }
}

impl CpuLevel {
    /// Its index in `LEVELS` of seam.cpp. Negative: no kernels of this library.
    pub(crate) fn index(self) -> i32 {
        match self {
            CpuLevel::Generic => -1,
            CpuLevel::Avx2 | CpuLevel::Neon => 0,
            CpuLevel::AvxVnni | CpuLevel::NeonDotprod => 1,
            CpuLevel::Avx512Vnni | CpuLevel::NeonI8mm => 2,
            CpuLevel::Amx => 3,
        }
    }

    /// Whether the system lets this process use the level.
    fn is_permitted(self) -> bool {
        self != CpuLevel::Amx || amx::is_permitted()
    }
}

impl fmt::Display for CpuLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The levels of this processor, from the least to the best. Empty: the processor lacks what ggml is compiled for.
#[must_use]
pub fn levels() -> &'static [CpuLevel] {
    static LEVELS: OnceCell<Vec<CpuLevel>> = OnceCell::new();
    LEVELS.get_or_init(detect)
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Vec<CpuLevel> {
    // The macro asks CPUID for the instructions and XGETBV for the system's support of their registers.
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi2");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni");
    let mut levels = Vec::new();
    if avx2 {
        levels.push(CpuLevel::Avx2);
        levels.extend(is_x86_feature_detected!("avxvnni").then_some(CpuLevel::AvxVnni));
        levels.extend(avx512.then_some(CpuLevel::Avx512Vnni));
        levels.extend((avx512 && amx::is_supported()).then_some(CpuLevel::Amx));
    }
    levels
}

/// AMX's registers, which Linux gives to the processes that ask for them.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx {
    use std::arch::x86_64::__cpuid_count;

    use once_cell::sync::OnceCell;

    // `arch_prctl`'s codes, and the number of the tiles' state.
    const ARCH_GET_XCOMP_SUPP: libc::c_int = 0x1021;
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XTILEDATA: u32 = 18;

    /// Whether the processor multiplies tiles of bytes, and the system knows their state.
    pub(crate) fn is_supported() -> bool {
        // SAFETY: a processor with AVX2 has this leaf.
        #[allow(unused_unsafe, reason = "newer versions of Rust have a safe function")]
        let features = unsafe { __cpuid_count(7, 0) }.edx;
        let (amx_tile, amx_int8) = (1 << 24, 1 << 25);
        let mut states = 0_u64;
        // SAFETY: the call writes the bits of the states.
        let asked = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, &raw mut states) };
        features & amx_tile != 0 && features & amx_int8 != 0 && asked == 0 && states >> XTILEDATA & 1 == 1
    }

    /// Whether this process may use tiles, which it asks for once. The frame of a signal is larger where a thread has used them, so Linux refuses
    /// if a thread's alternate stack for signals is too small for that.
    pub(crate) fn is_permitted() -> bool {
        static PERMITTED: OnceCell<bool> = OnceCell::new();
        // SAFETY: the call writes no memory.
        let ask =
            || unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, libc::c_ulong::from(XTILEDATA)) };
        *PERMITTED.get_or_init(|| ask() == 0)
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod amx {
    /// The kernels for AMX are compiled for Linux alone.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn is_supported() -> bool {
        false
    }

    pub(crate) fn is_permitted() -> bool {
        false
    }
}

#[cfg(target_arch = "aarch64")]
fn detect() -> Vec<CpuLevel> {
    let mut levels = vec![CpuLevel::Neon];
    // The macro asks the system (on Linux getauxval's AT_HWCAP).
    if std::arch::is_aarch64_feature_detected!("dotprod") {
        levels.push(CpuLevel::NeonDotprod);
        levels.extend(std::arch::is_aarch64_feature_detected!("i8mm").then_some(CpuLevel::NeonI8mm));
    }
    levels
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detect() -> Vec<CpuLevel> {
    vec![CpuLevel::Generic]
}

/// The level of a name that a host gives. `source` is where the name is from.
fn named(source: &str, name: &str, levels: &[CpuLevel]) -> Result<CpuLevel> {
    let level = levels.iter().copied().find(|level| level.as_str() == name).ok_or_else(|| {
        let allowed: Vec<&str> = levels.iter().map(|level| level.as_str()).collect();
        Error::invalid(format!("{source}: this processor's levels are {}, got {name:?}", allowed.join(", ")))
    })?;
    if !level.is_permitted() {
        let why = "a thread's alternate stack for signals may be too small";
        return Err(Error::invalid(format!("{source}: the system doesn't let this process use {level}: {why}")));
    }
    Ok(level)
}

/// The chosen level, and how many loaded models use it.
struct Chosen {
    level: Option<CpuLevel>,
    n_users: usize,
}

static CHOSEN: Mutex<Chosen> = Mutex::new(Chosen { level: None, n_users: 0 });

/// Keeps the level from being changed. Every loaded model has one.
#[derive(Debug)]
pub struct LevelInUse(());

impl Drop for LevelInUse {
    fn drop(&mut self) {
        CHOSEN.lock().n_users -= 1;
    }
}

/// The level in use; before the first model, the one that it would get.
#[must_use]
pub fn level() -> Option<CpuLevel> {
    CHOSEN.lock().level.or_else(|| default_level(levels()).ok())
}

fn default_level(levels: &[CpuLevel]) -> Result<CpuLevel> {
    if levels.is_empty() {
        return Err(Error::model(
            "this processor is not supported: it lacks AVX2, FMA, F16C or BMI2 (Intel since Haswell, AMD since Zen)",
        ));
    }
    match std::env::var(VARIABLE) {
        Ok(name) if !name.is_empty() => named(VARIABLE, &name, levels),
        _ => Ok(levels.iter().copied().rfind(|level| level.is_permitted()).unwrap_or(CpuLevel::Generic)),
    }
}

/// Chooses the level that is used if no host forces one. Without one, nothing of ggml may run.
///
/// # Errors
/// The processor lacks what ggml is compiled for, or the environment names another level than it has.
pub fn choose_default_level() -> Result<()> {
    let default = default_level(levels())?;
    let mut chosen = CHOSEN.lock();
    if chosen.level.is_none() {
        choose(default);
        chosen.level = Some(default);
    }
    Ok(())
}

/// Chooses the kernels of a level: of `forced`, of the environment's, or the best one.
///
/// # Errors
/// The processor lacks what ggml is compiled for, there is no such level, or loaded models use another one.
pub fn use_level(forced: Option<&str>) -> Result<LevelInUse> {
    let levels = levels();
    let default = default_level(levels)?;
    let mut chosen = CHOSEN.lock();
    let wanted = match forced {
        Some(name) => named("cpu_level", name, levels)?,
        None if chosen.n_users > 0 => chosen.level.unwrap_or(default),
        None => default,
    };
    if chosen.level != Some(wanted) {
        if chosen.n_users > 0 {
            let now = chosen.level.unwrap_or(default);
            return Err(Error::invalid(format!(
                "cpu_level: the loaded models of this process use {now}, got {wanted}"
            )));
        }
        choose(wanted);
        chosen.level = Some(wanted);
    }
    chosen.n_users += 1;
    Ok(LevelInUse(()))
}

/// Uses the kernels of a level from now on.
fn choose(level: CpuLevel) {
    #[cfg(own_kernels)]
    // SAFETY: no graph is computed, because no model is loaded; the level has kernels.
    unsafe {
        native::foredraft_kernels_choose(level.index());
    }
    #[cfg(not(own_kernels))]
    let _ = level.index();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_the_processor_lacks_is_refused_with_the_allowed_ones() {
        let levels = [CpuLevel::Avx2, CpuLevel::AvxVnni];
        assert_eq!(named("cpu_level", "avx-vnni", &levels), Ok(CpuLevel::AvxVnni));
        for name in ["avx512-vnni", "", "AVX2", "generic"] {
            let message = named("cpu_level", name, &levels).unwrap_err().message().to_owned();
            assert_eq!(message, format!("cpu_level: this processor's levels are avx2, avx-vnni, got {name:?}"));
        }
    }

    #[test]
    fn a_processor_without_avx2_is_an_error() {
        assert!(default_level(&[]).unwrap_err().message().contains("lacks AVX2"));
        assert_eq!(levels().is_empty(), level().is_none());
    }
}
