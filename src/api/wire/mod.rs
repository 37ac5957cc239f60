//! JSON objects of hosts, and the values that they are: a field is read once, here. Nothing here knows a loaded engine.
//!
//! - `fields`: the reader of objects. `old_keys`: the names that the old server's hosts use. `function`: the functions that take an object.
//! - `request`: a request for a completion. `load`: a load. `template_name`, `schema`: fields of both.
//! - `answer`: the outer form of answers. `usage`: what a completion cost.

pub mod answer;
pub mod fields;
pub mod function;
pub mod load;
pub mod old_keys;
pub mod request;
pub mod schema;
pub mod template_name;
pub mod usage;
