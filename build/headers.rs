//! The C headers, made of `src/ffi` by cbindgen. A test compares them with those of `include/`.

use std::env;
use std::fs;
use std::path::PathBuf;

/// The files of `src/ffi` that each header declares.
const HEADERS: [(&str, &[&str]); 2] =
    [("foredraft", &["types", "engine", "requests", "callbacks"]), ("rpcserver", &["legacy"])];
/// The file of the functions that `rpcserver.h` declares behind a macro.
const ADDED: &str = "legacy_added";

pub fn make_headers() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for (name, parts) in HEADERS {
        for part in parts.iter().chain((name == "rpcserver").then_some(&ADDED)) {
            println!("cargo:rerun-if-changed=src/ffi/{part}.rs");
        }
        let settings = |file: PathBuf| cbindgen::Config::from_file(file).expect("cbindgen's settings are valid");
        let mut config = settings(root.join("cbindgen.toml"));
        let own = settings(root.join(format!("src/ffi/{name}.toml")));
        (config.header, config.include_guard, config.export) = (own.header, own.include_guard, own.export);
        (config.includes, config.sys_includes) = (own.includes, own.sys_includes);
        config.after_includes = own.after_includes;
        if name == "foredraft" {
            let version = |part: &str| env::var(format!("CARGO_PKG_VERSION_{part}")).expect("cargo sets it");
            let versions = ["MAJOR", "MINOR", "PATCH"]
                .map(|part| format!("#define FOREDRAFT_VERSION_{part} {}\n", version(part)))
                .concat();
            let after = config.after_includes.take().unwrap_or_default();
            config.after_includes = Some(format!("{versions}{after}"));
        }
        let generated = |config: cbindgen::Config, parts: &[&str]| {
            let builder = cbindgen::Builder::new().with_config(config);
            let builder =
                parts.iter().fold(builder, |builder, part| builder.with_src(root.join(format!("src/ffi/{part}.rs"))));
            let mut header = Vec::new();
            builder.generate().expect("src/ffi has a C interface").write(&mut header);
            String::from_utf8(header).expect("cbindgen writes UTF-8")
        };
        let mut header = generated(config.clone(), parts);
        if name == "rpcserver" {
            let inner = cbindgen::Config {
                header: None,
                include_guard: None,
                sys_includes: Vec::new(),
                after_includes: None,
                cpp_compat: false,
                ..config
            };
            let (declarations, end) = header.rsplit_once("#ifdef __cplusplus").expect("the end of extern \"C\"");
            let (others, all) = (generated(inner, &[ADDED]), "FOREDRAFT_RPCSERVER_ALL");
            header = format!(
                "{declarations}#ifdef {all}\n\n{}\n\n#endif // {all}\n\n#ifdef __cplusplus{end}",
                others.trim()
            );
        }
        fs::write(out.join(format!("{name}.h")), c90(&header)).expect("OUT_DIR is writable");
    }
}

/// Converts cbindgen's output to C90: no `//` comments, and no comma after the last enumerator.
fn c90(header: &str) -> String {
    let lines: Vec<&str> = header.lines().collect();
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let ends_enum = lines.get(index + 1).is_some_and(|next| next.starts_with('}'));
        let line = if ends_enum { line.strip_suffix(',').unwrap_or(line) } else { line };
        match line.split_once("// ") {
            Some((code, comment)) if code.is_empty() || code.starts_with(['#', '}']) => {
                text += &format!("{code}/* {comment} */");
            }
            _ => text += line,
        }
        text.push('\n');
    }
    text
}
