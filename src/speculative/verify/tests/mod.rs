//! The rules against exact enumeration: no sampling, no tolerance beyond rounding.
//!
//! `dice` runs a rule once for every outcome of its chance and weighs each exactly; `worlds` makes up small targets and
//! drafts (tables, or sampler chains with penalties, truncation, temperature and grammars); `steps` drafts, verifies
//! and emits. The law of what is emitted must be the target's to 1e-12. `defects` has the rules once more, dense and
//! independent, with one defect each if asked for: then the same comparison must fail. `samplers` goes through the
//! product's samplers, `chances` through its random numbers.

mod chances;
mod coupling;
mod defects;
mod dice;
mod mutants;
mod rules;
mod samplers;
mod steps;
mod worlds;
