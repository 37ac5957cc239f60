//! Each defect must show: the tests would be worth nothing if they passed with it.

use super::super::{Draw, Row};
use super::defects::{self, Defect};
use super::dice::{Key, distance, honest};
use super::rules::EXACT;
use super::steps::*;
use super::worlds::{Law, Side, World};

/// Tables and whole sampler chains.
fn worlds() -> impl Iterator<Item = World> {
    (0..12).map(|seed| World::plain(2 + seed as usize % 2, seed)).chain((0..40).map(World::any))
}

/// The worst total variation between `law` and the target's over all worlds.
fn worst(len: usize, law: impl Fn(&World) -> Law) -> f64 {
    worst_of(worlds(), len, law)
}

fn worst_of(worlds: impl Iterator<Item = World>, len: usize, law: impl Fn(&World) -> Law) -> f64 {
    worlds.map(|world| distance(&law(&world), &world.law(&[], len)).0).fold(0.0, f64::max)
}

fn assert_wrong(what: &str, by: f64, margin: f64) {
    assert!(margin > 1e-3 && by > margin, "{what}: the worst error is only {by}");
}

fn faulty_chain(
    rule: fn(&super::super::Proposal, &Walk<'_>, &mut super::dice::Dice, Defect) -> super::super::Verdict,
    defect: Defect,
    drafter: Drafter,
) -> f64 {
    worst(3, |world| {
        one_step(world, 2, (drafter, &|draft, target, dice, _| rule(draft, target, dice, defect)), honest).0
    })
}

/// Without a defect, the second implementation says the same as the product, outcome for outcome.
#[test]
fn the_second_implementation_agrees() {
    for world in worlds().chain((100..160).map(World::any)) {
        for limit in 0..=3 {
            for drafter in [DRAWS, FIXES, MIXES] {
                let sound: [(Rule<'_>, Rule<'_>); 2] = [
                    (REJECTION, &|draft, target, dice, _| defects::rejection(draft, target, dice, Defect::None)),
                    (BLOCK, &|draft, target, dice, _| defects::block(draft, target, dice, Defect::None)),
                ];
                for (product, second) in sound {
                    let (law, accepted) = one_step(&world, limit, (drafter, product), honest);
                    let (other, others) = one_step(&world, limit, (drafter, second), honest);
                    assert!(distance(&law, &other).1 < EXACT && (accepted - others).abs() < EXACT, "{world:?}");
                }
            }
        }
        let second: TreeRule<'_> = &|draft, target, dice, _| defects::recursive(draft, target, dice, Defect::None);
        let (law, accepted) = tree_step(&world, &[2, 2], (BRANCHES, RECURSIVE));
        let (other, others) = tree_step(&world, &[2, 2], (BRANCHES, second));
        assert!(distance(&law, &other).1 < EXACT && (accepted - others).abs() < EXACT, "{world:?}");
    }
}

#[test]
fn defects_of_rejection_show() {
    let found = |defect| faulty_chain(defects::rejection, defect, DRAWS);
    assert!(found(Defect::None) < EXACT);
    for (defect, margin) in
        [(Defect::Swapped, 0.3), (Defect::NoResidual, 0.1), (Defect::NotClamped, 0.1), (Defect::NotNormalised, 0.1)]
    {
        assert_wrong(&format!("{defect:?}"), found(defect), margin);
    }
}

#[test]
fn defects_of_block_show() {
    let found = |defect| faulty_chain(defects::block, defect, DRAWS);
    assert!(found(Defect::None) < EXACT);
    for (defect, margin) in [
        (Defect::Swapped, 0.3),
        (Defect::NoResidual, 0.1),
        (Defect::NotClamped, 0.1),
        (Defect::NotNormalised, 0.1),
        (Defect::FirstFailure, 0.05),
        (Defect::NoFactor, 0.05),
        (Defect::UnscaledResidual, 0.05),
        (Defect::NoEnd, 0.1),
    ] {
        assert_wrong(&format!("{defect:?}"), found(defect), margin);
    }
}

#[test]
fn defects_of_trees_show() {
    let found = |widths: &[usize], defect| {
        worst(widths.len() + 1, |world| {
            tree_step(
                world,
                widths,
                (BRANCHES, &|draft, target, dice, _| defects::recursive(draft, target, dice, defect)),
            )
            .0
        })
    };
    for widths in [&[2][..], &[2, 1]] {
        assert!(found(widths, Defect::None) < EXACT);
        for (defect, margin) in [
            (Defect::Replacement, 0.05),
            (Defect::SameTarget, 0.05),
            (Defect::Swapped, 0.3),
            (Defect::NoResidual, 0.05),
            (Defect::NotClamped, 0.1),
        ] {
            assert_wrong(&format!("{defect:?} {widths:?}"), found(widths, defect), margin);
        }
    }
}

/// The most probable token, kept with the q that it was not drawn from.
const ARGMAX: Drafter = |world, text, draft, _| {
    let mut text = text.to_vec();
    for _ in 0..2 {
        let q = world.row(Side::Draft, &text);
        let q = Row::new(&q).unwrap();
        text.push(q.best().0);
        draft.forge(q.best().0, q);
    }
};

/// Drawn from the two most probable tokens, kept with all of q.
const OTHER_ROW: Drafter = |world, text, draft, dice| {
    let mut text = text.to_vec();
    for _ in 0..2 {
        let q = world.row(Side::Draft, &text);
        let mut cut = q.clone();
        cut.sort_by(|a, b| b.p.total_cmp(&a.p));
        cut.truncate(1 + q.len() / 2);
        let mut drawn = super::super::Proposal::default();
        drawn.begin(usize::MAX);
        draft.tokens().iter().for_each(|token| assert!(drawn.push_deterministic(*token)));
        let token = drawn.draw(Row::new(&cut).unwrap(), dice).unwrap();
        text.push(token);
        draft.forge(token, Row::new(&q).unwrap());
    }
};

/// Takes out drawn tokens from the first one on whose q is low.
const DROPS_IMPROBABLE: Drafter = |world, text, draft, dice| {
    DRAWS(world, text, draft, dice);
    let low = (0..draft.tokens().len()).find(|n| draft.get(*n).is_some_and(|drawn| drawn.q().p(drawn.token()) < 0.5));
    draft.drop_drawn(low.unwrap_or(usize::MAX));
};

/// At least two tokens or none, where it depends on the first whether there is a second.
const ALL_OR_NONE: Drafter = |world, text, draft, dice| {
    DRAWS(world, text, draft, dice);
    let first_is_0 = draft.tokens().first() == Some(&0);
    draft.drop_drawn(if first_is_0 { 0 } else { 2 });
};

#[test]
fn defects_of_drafters_show() {
    for (rule, name) in [(REJECTION, "rejection"), (BLOCK, "block")] {
        for (drafter, what, margin) in [
            (ARGMAX, "an argmax accepted with min(1, p/q)", 0.3),
            (OTHER_ROW, "drawn from another row", 0.2),
            (DROPS_IMPROBABLE, "improbable tokens taken out after the draw", 0.1),
            (ALL_OR_NONE, "two tokens or none", 0.1),
        ] {
            let by = worst(3, |world| one_step(world, 2, (drafter, rule), honest).0);
            assert_wrong(&format!("{name}: {what}"), by, margin);
        }
    }
}

fn accepts_by_the_draw((start, draw): Key) -> Key {
    (start, if let Draw::Accept(node) = draw { Draw::Draft(node) } else { draw })
}

fn replaces_by_the_refusal((start, draw): Key) -> Key {
    (start, if let Draw::Next(node) = draw { Draw::Accept(node + 1) } else { draw })
}

fn replaces_by_the_draw((start, draw): Key) -> Key {
    (start, if let Draw::Next(node) = draw { Draw::Draft(node + 1) } else { draw })
}

fn replaces_by_the_acceptance((start, draw): Key) -> Key {
    (start, if let Draw::Next(node) = draw { Draw::Accept(node) } else { draw })
}

#[test]
fn numbers_used_twice_show() {
    let wrong = |rule, alias| worst(3, |world| one_step(world, 2, (DRAWS, rule), alias).0);
    assert_wrong("u of the draw accepts", wrong(REJECTION, accepts_by_the_draw), 0.2);
    assert_wrong("u of the refusal replaces", wrong(REJECTION, replaces_by_the_refusal), 0.1);
    assert_wrong("u of the draw replaces", wrong(REJECTION, replaces_by_the_draw), 0.1);
    assert_wrong("block: u of the draw accepts", wrong(BLOCK, accepts_by_the_draw), 0.1);
    assert_wrong("block: u of the acceptance replaces", wrong(BLOCK, replaces_by_the_acceptance), 0.1);
}

/// Numbers by position and purpose, as they would be without the step in the key.
fn by_position((start, draw): Key) -> Key {
    let draw = match draw {
        Draw::Draft(node) => Draw::Draft(start + node),
        Draw::Accept(node) => Draw::Accept(start + node),
        Draw::Next(node) => Draw::Next(start + node),
    };
    (0, draw)
}

/// Why the step is in the key: with `block` a refused end is not forgotten, and with `rejection` a controller that has
/// looked at it brings it back.
#[test]
fn numbers_of_refused_ends_are_not_fresh() {
    let same: Controller = |limit, _, _| limit;
    let looks: Controller = |_, draft, _| if draft.last() == Some(&0) { 2 } else { 0 };
    let endless = || worlds().map(|world| World { n_vocab: 2, ends: false, ..world });
    let by =
        |rule, controller, alias| worst_of(endless(), 3, |world| steps(world, 3, 2, (DRAWS, rule), controller, alias));
    assert!(by(BLOCK, same, honest) < EXACT && by(REJECTION, looks, honest) < EXACT);
    assert!(by(REJECTION, same, by_position) < EXACT, "what a refusal leaves behind has decided nothing");
    assert_wrong("block", by(BLOCK, same, by_position), 0.01);
    assert_wrong("rejection and a controller", by(REJECTION, looks, by_position), 0.01);
}
