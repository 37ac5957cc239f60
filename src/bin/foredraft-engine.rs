//! The process of an isolated engine. The library starts it when a load has `"isolate": true`; it is of no use by itself.

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    #[cfg(target_os = "linux")]
    foredraft::api::serve_isolated(&arguments);
    #[cfg(not(target_os = "linux"))]
    drop(arguments);
}
