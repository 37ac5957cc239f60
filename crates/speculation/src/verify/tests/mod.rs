//! The rules against exact enumeration: no sampling, no tolerance beyond rounding.
//!
//! `enumeration` runs a rule once for every outcome of its random numbers, weighted by the exact probability.
//! `toy_models` makes small targets and drafts: tables, or sampler chains with penalties, truncation, temperature and
//! grammars. `steps` drafts, verifies and commits. The resulting output distribution must equal the target's to 1e-12
//! (`rules`, `coupling`; `acceptance` has the formulas for acceptance rates). `defects` implements the rules a second
//! time, with one defect each; then the same comparison must fail. `samplers` uses the product's samplers, `random` the
//! product's random numbers.

mod acceptance;
mod coupling;
mod defects;
mod enumeration;
mod random;
mod rules;
mod samplers;
mod steps;
mod toy_models;
