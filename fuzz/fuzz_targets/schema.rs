//! Compiles any JSON as a schema, in each notation, and as the schema of an argument.
#![no_main]

use foredraft_base::work::Work;
use foredraft_grammar::tree::TreeBuilder;
use foredraft_schema::{CompileOptions, Notation, Schema, Values};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = serde_json::from_slice(bytes) else { return };
    let Ok(schema) = Schema::new(&value, &Work::new(1 << 23, None)) else { return };
    for drop_unenforceable in [false, true] {
        let options = CompileOptions {
            drop_unenforceable,
            is_open: drop_unenforceable,
            any_order: drop_unenforceable,
            is_lenient: false,
        };
        let tree = TreeBuilder::new();
        for notation in [Notation::Json, Notation::Python, Notation::Gemma] {
            let _ = Values::new(&tree, notation, options).value(&schema);
            let _ = schema.compile_argument(&["</parameter>"], notation, &options, &tree);
        }
        assert!(!tree.is_too_large());
    }
    let _ = schema.parameters();
    let _ = schema.is_valid(&value);
});
