//! Compiles any JSON as a schema, and as the schema of an argument. The grammar is one.
#![no_main]

use foredraft_base::work::Work;
use foredraft_schema::{CompileOptions, Rules, Schema};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = serde_json::from_slice(bytes) else { return };
    let Ok(schema) = Schema::new(&value, &Work::new(1 << 23, None)) else { return };
    for drop_unenforceable in [false, true] {
        let options = CompileOptions { drop_unenforceable, any_order: drop_unenforceable, python: drop_unenforceable };
        let mut rules = Rules::new();
        if let Ok(compiled) = schema.compile(&options, &mut rules) {
            assert!(rules.to_gbnf(&compiled.rule).contains(" ::= "));
        }
        let _ = schema.compile_argument(&["</parameter>"], &options, &mut rules);
    }
    let _ = schema.parameters();
    let _ = schema.is_valid(&value);
});
