use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn command_lines_are_split_into_words() {
    let check = |line: &str, expected: &[&str]| assert_eq!(split(line).unwrap(), expected, "{line}");
    check("", &[]);
    check("  \t\n ", &[]);
    check("-m model.gguf  -c\t4096\n", &["-m", "model.gguf", "-c", "4096"]);
    check(r#"-m "my models/a b.gguf""#, &["-m", "my models/a b.gguf"]);
    check(r"-m 'it is \n here'", &["-m", r"it is \n here"]);
    check(r"-m my\ models/a.gguf", &["-m", "my models/a.gguf"]);
    check(r#"--a"b c"d'e f' "" ''"#, &["--ab cde f", "", ""]);
    check(r#""a \" b \\ c \d""#, &[r#"a " b \ c \d"#]);
    check(r"C:\models\x.gguf \\host \'q\'", &[r"C:\models\x.gguf", r"\host", "'q'"]);
    check("ends\\", &["ends\\"]);
    check("größe 模型.gguf", &["größe", "模型.gguf"]);
    for open in [r#"-m "a b"#, "-m 'a", r#"-m "a\""#] {
        assert!(split(open).unwrap_err().message().contains("is not closed"), "{open}");
    }
}

#[test]
fn flags_become_json_keys() {
    let check = |line: &str, expected: Value| {
        let parsed = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!((Value::Object(parsed.object), parsed.warnings), (expected, Vec::<String>::new()), "{line}");
    };
    check("", json!({}));
    check(
        "-m model.gguf -md draft.gguf -c 4096 -ngl 99",
        json!({"model": "model.gguf", "model_draft": "draft.gguf", "n_ctx": 4096, "n_gpu_layers": 99}),
    );
    // The old server skipped the program name.
    check("./server -m a.gguf", json!({"model": "a.gguf"}));
    check("--model=a=b.gguf --ctx_size=0 --ctx-size 0", json!({"model": "a=b.gguf", "n_ctx": 0}));
    check("-c -1 -s -1", json!({"n_ctx": -1, "seed": -1}));
    check("-fa -c 1", json!({"flash_attn": "on", "n_ctx": 1}));
    check("-fa 1 -c 1", json!({"flash_attn": "on", "n_ctx": 1}));
    check("-fa -1", json!({"flash_attn": "auto"}));
    check("--flash-attn=disabled", json!({"flash_attn": "off"}));
    check("-fa off", json!({"flash_attn": "off"}));
    check("--flash-attn=auto", json!({"flash_attn": "auto"}));
    check("--flash-attn=maybe", json!({"flash_attn": "maybe"})); // the load's parser refuses it
    check("--numa --mlock", json!({"numa": "distribute", "use_mlock": true}));
    check("--numa isolate --no-mmap", json!({"numa": "isolate", "use_mmap": false}));
    check("-lm mmap+mlock", json!({"use_mmap": true, "use_mlock": true}));
    check("-ngl auto -ngld all", json!({"n_gpu_layers": "auto", "n_gpu_layers_draft": "all"}));
    check(
        "-ot exps=CPU -ncmoe 4 -cmoed",
        json!({"override_tensor": ["exps=CPU"], "n_cpu_moe": 4, "n_cpu_moe_draft": "all"}),
    );
    check("-ts 3,1/2.5 -sm row -mg 1", json!({"tensor_split": [3.0, 1.0, 2.5], "split_mode": "row", "main_gpu": 1}));
    check("-dev CUDA0,CUDA1 -devd none", json!({"devices": ["CUDA0", "CUDA1"], "devices_draft": ["none"]}));
    check("--rpc 10.0.0.1:50052,[::1]:1", json!({"rpc": ["10.0.0.1:50052", "[::1]:1"]}));
    check("--rope-scale 4 --rope-freq-base 1e6", json!({"rope_freq_scale": 0.25, "rope_freq_base": 1e6}));
    check(
        "--override-kv a=int:1,b=bool:true --override-kv 'c=str:\"x,y\"'",
        json!({"override_kv": ["a=int:1", "b=bool:true", "c=str:\"x", "y\""]}),
    );
    check("--override-kv '\"c=str:x,y\"'", json!({"override_kv": ["c=str:x,y"]}));
    check(
        "--lora a.gguf,b.gguf --lora-scaled C:/c.gguf:0.5",
        json!({"lora": [
            {"path": "a.gguf", "scale": 1.0}, {"path": "b.gguf", "scale": 1.0}, {"path": "C:/c.gguf", "scale": 0.5},
        ]}),
    );
    check(
        "--draft-max 8 --draft-min 1 --draft-p-min 0.75 --spec-type draft-simple,none --draft-p-split 0.1",
        json!({"speculative": {"n_max": 8, "n_min": 1, "p_min": 0.75, "type": ["draft-simple", "none"], "p_split": 0.1}}),
    );
    check("--draft 4", json!({"speculative": {"n_draft": 4}}));
    check(
        "-np 4 -t 2 -tb 3 -td 1 -tbd 2 -kvu -b 64 -ub 32 --keep -1",
        json!({"n_parallel": 4, "n_threads": 2, "n_threads_batch": 3, "n_threads_draft": 1,
            "n_threads_batch_draft": 2, "kv_unified": true, "n_batch": 64, "n_ubatch": 32, "n_keep": -1}),
    );
    check(
        "--prio -1 --prio-batch 2 -C 0x3 -Crb 0-1 --cpu-strict 1 --poll 0 --poll-draft=50 -Cbd f",
        json!({"prio": -1, "prio_batch": 2, "cpu_mask": "0x3", "cpu_range_batch": "0-1", "cpu_strict": 1, "poll": 0,
            "poll_draft": 50, "cpu_mask_batch_draft": "f"}),
    );
    check(
        "-ctk q8_0 -ctv f16 -ctkd bf16",
        json!({"cache_type_k": "q8_0", "cache_type_v": "f16", "cache_type_k_draft": "bf16"}),
    );
    check("--memory-f32", json!({"cache_type_k": "f32", "cache_type_v": "f32"}));
    check(
        "--no-warmup --no-context-shift --embeddings",
        json!({"warmup": false, "ctx_shift": false, "embedding": true}),
    );
    check(
        "-a gpt --chat-template chatml --pooling mean",
        json!({"model_alias": "gpt", "chat_template": "chatml", "pooling": "mean"}),
    );
    check("-v", json!({"log_level": "debug"}));
    check(
        "--host 0.0.0.0 --port 8080 --path www -to 600",
        json!({"hostname": "0.0.0.0", "port": 8080, "public_path": "www", "read_timeout": 600, "write_timeout": 600}),
    );
}

#[test]
fn ignored_flags_give_warnings() {
    let check = |line: &str, expected: &[&str]| assert_eq!(parse(line).unwrap().warnings, expected, "{line}");
    check("-c 1 --ctx-size 2", &["--ctx-size: n_ctx was set before; the last value is used"]);
    check("-c 1 -c 1", &[]);
    check("--draft-n 1 --draft-max 2", &["--draft-max: speculative.n_max was set before; the last value is used"]);
    check(
        "--metrics --threads-http 4 -cb --api-key secret --no-cors-credentials",
        &["--metrics", "--threads-http", "-cb", "--api-key", "--no-cors-credentials"]
            .map(|flag| format!("{flag}: accepted and ignored"))
            .each_ref()
            .map(String::as_str),
    );
}

/// Flags of llama.cpp at the time of the old server.
#[test]
fn old_flags_do_what_they_did_or_are_ignored() {
    let check = |line: &str, object: Value, warnings: &[&str]| {
        let parsed = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(Value::Object(parsed.object), object, "{line}");
        let starts = parsed.warnings.iter().zip(warnings).all(|(warning, start)| warning.starts_with(start));
        assert!(starts && parsed.warnings.len() == warnings.len(), "{line}: {:?}", parsed.warnings);
    };
    let lora = |path: &str, scale: f64| json!({"path": path, "scale": scale});
    check("--lora-scaled a.gguf 0.5 -c 8", json!({"lora": [lora("a.gguf", 0.5)], "n_ctx": 8}), &[]);
    check("--lora-scaled C:/a.gguf 1 -m m", json!({"lora": [lora("C:/a.gguf", 1.0)], "model": "m"}), &[]);
    check("--lora-scaled a.gguf:2 -m m", json!({"lora": [lora("a.gguf", 2.0)], "model": "m"}), &[]);
    check(
        "--lora a.gguf --lora-base base.gguf -m m",
        json!({"lora": [lora("a.gguf", 1.0)], "model": "m"}),
        &["--lora-base: "],
    );
    check("-lv", json!({}), &["-lv: without a number it is --low-vram"]);
    check("-lv -m m", json!({"model": "m"}), &["-lv: "]);
    check("-lv 3 -m m", json!({"log_level": 3, "model": "m"}), &[]);
    check("--low-vram -gqa 8 -eps 1e-5 -m m", json!({"model": "m"}), &["--low-vram: ", "-gqa: ", "-eps: "]);
    check(
        "--temp 0.5 -n 5 --ignore-eos -m m",
        json!({"model": "m"}),
        &["--temp: ignored, set it in each request", "-n: ", "--ignore-eos: "],
    );
    check("--memory_f32", json!({"cache_type_k": "f32", "cache_type_v": "f32"}), &[]);
    check("--numa -m m", json!({"numa": "distribute", "model": "m"}), &[]);
}

#[test]
fn invalid_flags_are_refused() {
    let check = |line: &str, expected: &str| {
        let error = parse(line).expect_err(line);
        assert_eq!(error.code(), crate::error::Code::InvalidRequest);
        assert!(error.message().contains(expected), "{line}: {error} does not say {expected:?}");
    };
    check("-m", "-m: expected a value, got the end of the command line");
    check("-m -c 4096", "-m: expected a value, got the flag -c");
    check("--ctx-sise 1", r#"--ctx-sise: unknown flag (did you mean "--ctx-size"?)"#);
    check("--paralel=2", r#"--paralel: unknown flag (did you mean "--parallel"?)"#);
    check("-ngll 1", r#"(did you mean "-ngl"?)"#);
    check("--frobnicate", "--frobnicate: unknown flag");
    check("-m a.gguf b.gguf", r#"command line: expected a flag, got "b.gguf""#);
    check("-c 4k", r#"-c: expected a whole number, got "4k""#);
    check("-c 99999999999999999999", "-c: expected a whole number");
    check("--rope-freq-base inf", r#"--rope-freq-base: expected a number, got "inf""#);
    check("--rope-freq-base nan", "expected a number");
    check("--rope-scale 0", "--rope-scale: expected a number above 0, got \"0\"");
    check("-ts 1,x", "-ts: expected a number, got \"x\"");
    check("-lm dio", "-lm: expected auto, none, mmap");
    check("--lora-scaled a.gguf", "--lora-scaled: expected FILE:SCALE, got \"a.gguf\"");
    check("--mlock=1", "--mlock: takes no value, got \"1\"");
    check("-m \"a", "is not closed");
    check("--mtp", "--mtp: not available in this version");
    check("-hf user/model", "-hf: models are not downloaded");
}

#[test]
fn flag_names_are_unique_and_well_formed() {
    let mut names: Vec<&str> = FLAGS.iter().flat_map(|flag| flag.names.iter().copied()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    for name in names {
        assert!(name.starts_with('-') && !name.contains('_') && !name.contains('='), "{name}");
    }
}

proptest! {
    /// Words in double quotes, with quotes and backslashes escaped, are split back unchanged.
    #[test]
    fn quoted_words_are_split_back_unchanged(words in prop::collection::vec("[ -~äπ\\\\\"']{0,12}", 0..6)) {
        let quoted: Vec<String> = words
            .iter()
            .map(|word| format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\"")))
            .collect();
        prop_assert_eq!(split(&quoted.join(" ")).unwrap(), words.clone());
        // Single quotes work for words without a single quote.
        let plain: Vec<String> = words.iter().map(|word| word.replace('\'', "")).collect();
        let line: String = plain.iter().map(|word| format!("'{word}'\t")).collect();
        prop_assert_eq!(split(&line).unwrap(), plain);
    }

    /// Without quotes and escapes, a line is split at spaces.
    #[test]
    fn unquoted_words_are_split_at_whitespace(line in "[a-z0-9=,./: -]{0,80}") {
        let expected: Vec<&str> = line.split_whitespace().collect();
        prop_assert_eq!(split(&line).unwrap(), expected);
    }

    #[test]
    fn random_text_is_split_or_refused(line in "\\PC{0,80}") {
        if let Ok(words) = split(&line) {
            let letters = words.iter().map(String::len).sum::<usize>();
            prop_assert!(letters <= line.len());
        }
        let _ = parse(&line);
    }

    /// Any sequence of flags and words gives an object, or an error that names a part of the line.
    #[test]
    fn random_flags_are_parsed_or_refused(picks in prop::collection::vec((any::<prop::sample::Index>(), "[a-z0-9.,:=-]{0,6}", any::<bool>()), 0..6)) {
        let names: Vec<&str> = FLAGS.iter().flat_map(|flag| flag.names.iter().copied()).collect();
        let line: Vec<String> = picks
            .iter()
            .map(|(index, word, attach)| format!("{}{}{word}", index.get(&names), if *attach { "=" } else { " " }))
            .collect();
        let line = line.join(" ");
        match parse(&line) {
            Ok(parsed) => prop_assert!(parsed.object.keys().all(|key| !key.starts_with('-'))),
            Err(error) => {
                let named = error.message().split(": ").next().unwrap_or("");
                prop_assert!(line.contains(named) || named == "command line", "{}: {}", line, error);
            }
        }
    }
}

/// Flags of llama.cpp's programs that a host may pass along: they are ignored as `-p` is.
#[test]
fn flags_of_programs_are_ignored_with_a_warning() {
    let check = |flags: &str, n: usize, why: &str| {
        let parsed = parse(&format!("-m a.gguf {flags} -c 512")).unwrap_or_else(|error| panic!("{flags}: {error}"));
        assert_eq!(Value::Object(parsed.object), json!({"model": "a.gguf", "n_ctx": 512}), "{flags}");
        assert_eq!(parsed.warnings.len(), n, "{flags}: {:?}", parsed.warnings);
        assert!(parsed.warnings.iter().all(|warning| warning.ends_with(why)), "{flags}: {:?}", parsed.warnings);
    };
    for flags in [
        "-p Once",
        "-f prompt.txt",
        "--file \"a prompt.txt\"",
        "-e",
        "--escape",
        "--no-escape",
        "-sys \"You are helpful.\"",
        "-sysf system.txt",
        "--in-prefix ' '",
        "--in-prefix \"\"",
        "--in-prefix-bos",
        "--in-suffix \"\\nAssistant:\"",
        "--prompt-cache cache.bin",
        "--prompt-cache-all",
        "--prompt-cache-ro",
        "--special",
        "-sp",
        "--grammar-file a.gbnf",
        "--typical-p 0.9",
        "--dry-multiplier 0.8",
        "--json-schema {}",
        "-bf prompt.bin",
    ] {
        check(flags, 1, ": ignored, set it in each request");
    }
    for flags in [
        "--color",
        "--color on",
        "-co auto",
        "--color=off",
        "-i",
        "-ins",
        "--interactive-first",
        "--multiline-input",
        "-cnv",
        "--perplexity",
        "--chunks 5",
        "--cfg-scale 1.5",
        "--cfg-negative-prompt \"no\"",
        "--log-file a.log",
        "--log-enable",
        "--random-prompt",
        "--simple-io",
        "-ns 3",
    ] {
        check(flags, 1, ": accepted and ignored");
    }
    check("--color -i -e -sys x --special --in-prefix-bos", 6, "");
    for (line, message) in [
        ("-f", "-f: expected a value"),
        ("-sys -c 5", "-sys: expected a value, got the flag -c"),
        ("-e=1", "-e=1: unknown flag"),
    ] {
        let error = parse(line).unwrap_err();
        assert!(error.message().starts_with(message), "{line}: {error}");
    }
    assert_eq!(
        Value::Object(parse("--chat-template-file a.jinja").unwrap().object),
        json!({"chat_template_file": "a.jinja"})
    );
}

/// No name belongs to two flags.
#[test]
fn names_of_flags_are_unique() {
    let mut names: Vec<&str> = FLAGS.iter().flat_map(|flag| flag.names.iter().copied()).collect();
    names.sort_unstable();
    let n = names.len();
    names.dedup();
    assert_eq!(names.len(), n);
}
