//! Passes on to the Rust code which of ggml's functions `foredraft-native` replaces on this platform.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(own_barrier, own_kernels)");
    for (fact, cfg) in [("BARRIER", "own_barrier"), ("KERNELS", "own_kernels")] {
        if std::env::var_os(format!("DEP_FOREDRAFT_NATIVE_{fact}")).is_some() {
            println!("cargo:rustc-cfg={cfg}");
        }
    }
}
