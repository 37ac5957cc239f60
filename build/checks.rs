//! Checks of the environment.

use std::env;

/// Warns about missing flags: RUSTFLAGS and CPATH in the environment replace those in `.cargo/config.toml`.
pub fn check_environment() {
    println!("cargo:rerun-if-env-changed=CPATH");
    let paths = env::var_os("CPATH").unwrap_or_default();
    let has = |header: &str| env::split_paths(&paths).any(|path| path.join(header).is_file());
    if env::var("TARGET").is_ok_and(|target| target.ends_with("-windows-gnu")) {
        assert!(has("winbase.h"), "CPATH has no scripts/gcc: see docs/building.md");
    } else if !has("amxtileintrin.h") {
        println!(
            "cargo:warning=CPATH has no scripts/gcc: built by GCC 12, it may end the process on processors with AMX"
        );
    }
}
