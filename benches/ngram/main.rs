#[path = "../../examples/host/mod.rs"]
mod host;
#[path = "../peer/mod.rs"]
mod peer;
fn main() { println!("{} {:?}", peer::heap(), peer::Cache::new().map(|c| c.len())); 
 let mut m = peer::Models::load("models/stories-target.gguf".as_ref(), Some("models/stories-draft.gguf".as_ref()), peer::Settings{n_ctx:512,n_threads:2,n_threads_draft:1,poll:0}).unwrap();
 for kind in ["none","draft-simple","ngram-simple","ngram-map-k","ngram-map-k4v","ngram-mod","ngram-cache", "x"] {
 let r = m.generate(&[1,300,400,500,20,30], &peer::Request{kind, n_predict:100, ignore_eos:true, ..Default::default()});
 println!("{kind} {r:?}"); }
 for n in 1..5 { println!("{n} {} {}", m.batch_seconds(false,n,64,9).unwrap(), m.batch_seconds(true,n,64,9).unwrap()); }
}
