//! Sampler fields: the reported sampling distribution must equal the sampler's definition applied to the model's distribution.

use serde_json::{Value, json};

use crate::common::{start, with};
use crate::table::{Response, Row, float, row, run, tokenized};

/// The size of the shipped models' vocabulary.
const N_VOCAB: usize = 1536;

/// A position of the output, with what its token is sampled from.
struct Place {
    /// The model's log-probabilities, the largest first.
    raw: Vec<(i64, f64)>,
    /// The tokens of the context so far.
    history: Vec<i64>,
    /// The number of generated tokens before this one.
    position: usize,
}

impl Place {
    /// The distribution after changing the logits: normalized, the largest first.
    fn changed(&self, change: impl Fn(i64, f64) -> f64) -> Vec<(i64, f64)> {
        normal(self.raw.iter().map(|(id, logit)| (*id, change(*id, *logit))).collect())
    }

    fn probabilities(&self) -> Vec<(i64, f64)> {
        self.changed(|_, logit| logit)
    }

    /// The number of times a token occurs in the last `n`.
    fn count(&self, id: i64, n: usize) -> f64 {
        self.history.iter().rev().take(n).filter(|token| **token == id).count() as f64
    }

    /// The distribution truncated to its `n` most probable tokens.
    fn first(&self, n: usize) -> Vec<(i64, f64)> {
        normal(self.raw[..n.clamp(1, self.raw.len())].to_vec())
    }
}

/// The softmax of logits, the largest first.
fn normal(mut logits: Vec<(i64, f64)>) -> Vec<(i64, f64)> {
    logits.sort_by(|a, b| b.1.total_cmp(&a.1));
    let sum: f64 = logits.iter().map(|(_, logit)| logit.exp()).sum();
    logits.into_iter().map(|(id, logit)| (id, logit.exp() / sum)).filter(|(_, p)| *p > 0.0).collect()
}

fn list(answer: &Value, place: usize, names: (&str, &str)) -> Vec<(i64, f64)> {
    let top = answer["completion_probabilities"][place][names.0].as_array().expect("probabilities");
    top.iter().map(|item| (item["id"].as_i64().expect("an id"), float(&item[names.1]))).collect()
}

/// The prompt's tokens.
fn history(response: &Response) -> Vec<i64> {
    tokenized(response.engine, json!({"text": response.request["prompt"]}))
}

/// The tokens of a piece of text.
fn ids(response: &Response, text: &str) -> Vec<i64> {
    tokenized(response.engine, json!({"text": text, "add_special": false}))
}

/// Asserts that each token was sampled from the distribution that `expected` makes of the model's.
fn drawn_from(response: &Response, expected: impl Fn(&Place) -> Vec<(i64, f64)>) {
    let own = response.ask(json!({"n_probs": N_VOCAB}));
    let drawn = response.ask(json!({"n_probs": N_VOCAB, "post_sampling_probs": true}));
    assert_eq!(own.tokens(), drawn.tokens(), "reporting probabilities must not change the output");
    let mut history = history(response);
    for (position, token) in own.tokens().into_iter().enumerate() {
        let raw = list(&own.answer, position, ("top_logprobs", "logprob"));
        assert_eq!(raw.len(), N_VOCAB);
        let place = Place { raw, history: history.clone(), position };
        let (found, expected) = (list(&drawn.answer, position, ("top_probs", "prob")), expected(&place));
        assert_eq!(found.len(), expected.len(), "at {position} of {}", response.request);
        for (id, p) in &found {
            let other = expected.iter().find(|(other, _)| other == id);
            let other =
                other.unwrap_or_else(|| panic!("{id} must not be drawn: at {position} of {}", response.request)).1;
            assert!(
                (p - other).abs() < 1e-4,
                "{id}: {p} where {other} was expected, at {position} of {}",
                response.request
            );
        }
        assert!(found.iter().any(|(id, _)| *id == token));
        history.push(token);
    }
}

/// A row for one sampler: `sent` sets it, and all other samplers are off.
fn sampler_row(field: &'static [&'static str], sent: Value, check: fn(&Response)) -> Row {
    let off = json!({
        "temperature": 1, "top_k": 0, "top_p": 1, "repeat_penalty": 1, "n_predict": 4,
        "prompt": "Tom had a red hat. Tom had a red hat. Tom had a",
    });
    row(field, with(&off, sent), check)
}

pub fn rows() -> Vec<Row> {
    vec![
        sampler_row(&["temperature"], json!({"temperature": 0.5}), |response| {
            drawn_from(response, |place| place.changed(|_, logit| logit / 0.5));
            let (a, b) = (response.ask(json!({"temperature": 0})), response.ask(json!({"temperature": 0, "seed": 8})));
            assert_eq!(a.tokens(), b.tokens(), "temperature 0 is greedy");
            drawn_from(&a, |place| place.first(1));
        }),
        sampler_row(&["top_k"], json!({"top_k": 3}), |response| drawn_from(response, |place| place.first(3))),
        sampler_row(&["top_p"], json!({"top_p": 0.6}), |response| {
            drawn_from(response, |place| {
                let mut sum = 0.0;
                let enough = place.probabilities().iter().position(|(_, p)| {
                    sum += p;
                    sum >= 0.6
                });
                place.first(enough.expect("a sum") + 1)
            });
        }),
        sampler_row(&["min_p"], json!({"min_p": 0.05}), |response| {
            drawn_from(response, |place| {
                let all = place.probabilities();
                place.first(all.iter().filter(|(_, p)| *p >= 0.05 * all[0].1).count())
            });
        }),
        sampler_row(&["tfs_z"], json!({"tfs_z": 0.9}), |response| {
            // Accumulates the absolute second differences of the sorted probabilities.
            drawn_from(response, |place| {
                let p: Vec<f64> = place.probabilities().into_iter().map(|(_, p)| p).collect();
                let bends: Vec<f64> = p.windows(3).map(|w| (w[0] - 2.0 * w[1] + w[2]).abs()).collect();
                let (all, mut sum): (f64, f64) = (bends.iter().sum(), 0.0);
                let cut = bends.iter().position(|bend| {
                    sum += bend / all;
                    sum > 0.9
                });
                place.first(cut.unwrap_or(N_VOCAB))
            });
        }),
        sampler_row(&["typical_p"], json!({"typical_p": 0.7}), |response| {
            drawn_from(response, |place| {
                let all = place.probabilities();
                let entropy: f64 = all.iter().map(|(_, p)| -p * p.ln()).sum();
                let mut order: Vec<(i64, f64)> = all.clone();
                order.sort_by(|a, b| (a.1.ln() + entropy).abs().total_cmp(&(b.1.ln() + entropy).abs()));
                let mut sum = 0.0;
                let n = order.iter().position(|(_, p)| {
                    sum += p;
                    sum > 0.7
                });
                normal(order[..=n.expect("a sum")].iter().map(|(id, p)| (*id, p.ln())).collect())
            });
        }),
        sampler_row(&["top_n_sigma"], json!({"top_n_sigma": 2}), |response| {
            drawn_from(response, |place| {
                let mean = place.raw.iter().map(|(_, x)| x).sum::<f64>() / N_VOCAB as f64;
                let sigma = (place.raw.iter().map(|(_, x)| (x - mean).powi(2)).sum::<f64>() / N_VOCAB as f64).sqrt();
                place.first(place.raw.iter().filter(|(_, x)| *x >= place.raw[0].1 - 2.0 * sigma).count())
            });
        }),
        sampler_row(
            &["dynatemp_range", "dynatemp_exponent"],
            json!({"dynatemp_range": 0.5, "dynatemp_exponent": 2}),
            |response| {
                drawn_from(response, |place| {
                    let entropy: f64 = place.probabilities().iter().map(|(_, p)| -p * p.ln()).sum();
                    let temperature = 0.5 + (entropy / (N_VOCAB as f64).ln()).powi(2);
                    place.changed(|_, logit| logit / temperature)
                });
                let linear = response.ask(json!({"dynatemp_exponent": 1}));
                drawn_from(&linear, |place| {
                    let entropy: f64 = place.probabilities().iter().map(|(_, p)| -p * p.ln()).sum();
                    let temperature = 0.5 + entropy / (N_VOCAB as f64).ln();
                    place.changed(|_, logit| logit / temperature)
                });
            },
        ),
        sampler_row(
            &["xtc_probability", "xtc_threshold"],
            json!({"xtc_probability": 1, "xtc_threshold": 0.1, "temperature": 1.2}),
            |response| {
                let expected = |place: &Place| {
                    let top = place.probabilities().iter().filter(|(_, p)| *p >= 0.1).count();
                    let left = place.raw[if top >= 2 { top - 1 } else { 0 }..].iter();
                    normal(left.map(|(id, logit)| (*id, logit / 1.2)).collect())
                };
                drawn_from(response, expected);
                drawn_from(&response.ask(json!({"xtc_threshold": 0.6})), |place| place.changed(|_, logit| logit / 1.2));
                drawn_from(&response.ask(json!({"xtc_probability": 0})), |place| place.changed(|_, logit| logit / 1.2));
            },
        ),
        sampler_row(
            &["presence_penalty", "repeat_last_n"],
            json!({"presence_penalty": 1.5, "repeat_last_n": 5}),
            |response| {
                drawn_from(response, |place| place.changed(|id, logit| logit - 1.5 * place.count(id, 5).min(1.0)));
                let whole = response.ask(json!({"repeat_last_n": -1}));
                drawn_from(&whole, |place| place.changed(|id, logit| logit - 1.5 * place.count(id, 1 << 20).min(1.0)));
                drawn_from(&response.ask(json!({"repeat_last_n": 0})), |place| place.probabilities());
            },
        ),
        sampler_row(&["frequency_penalty"], json!({"frequency_penalty": 0.7, "repeat_last_n": 12}), |response| {
            drawn_from(response, |place| place.changed(|id, logit| logit - 0.7 * place.count(id, 12)));
        }),
        sampler_row(&["penalize_nl"], json!({"presence_penalty": 5, "prompt": "a\nb\nc\n"}), |response| {
            drawn_from(response, |place| place.changed(|id, logit| logit - 5.0 * place.count(id, 64).min(1.0)));
            let newline = ids(response, "\n")[0];
            let spared = response.ask(json!({"penalize_nl": false}));
            drawn_from(&spared, |place| {
                place
                    .changed(|id, logit| if id == newline { logit } else { logit - 5.0 * place.count(id, 64).min(1.0) })
            });
        }),
        sampler_row(&["repeat_penalty"], json!({"repeat_penalty": 1.3}), |response| {
            // The penalty changes the logits of tokens in the context. Logits are not reported, so their ratios are compared.
            let own = response.ask(json!({"n_probs": N_VOCAB}));
            let drawn = response.ask(json!({"n_probs": N_VOCAB, "post_sampling_probs": true}));
            let raw = list(&own.answer, 0, ("top_logprobs", "logprob"));
            let post = list(&drawn.answer, 0, ("top_probs", "prob"));
            let history = history(response);
            let ratio = |id: i64| {
                let logprob = raw.iter().find(|(other, _)| *other == id).expect("every token").1;
                post.iter().find(|(other, _)| *other == id).map(|(_, p)| p.ln() - logprob)
            };
            let ratios: Vec<(bool, f64)> =
                raw.iter().filter_map(|(id, _)| Some((history.contains(id), ratio(*id)?))).collect();
            let unseen: Vec<f64> = ratios.iter().filter(|(is_seen, _)| !is_seen).map(|(_, ratio)| *ratio).collect();
            let change = unseen[0];
            assert!(unseen.iter().all(|ratio| (ratio - change).abs() < 1e-3), "{unseen:?}");
            let seen: Vec<f64> = ratios.iter().filter(|(is_seen, _)| *is_seen).map(|(_, ratio)| *ratio).collect();
            assert!(seen.len() > 5 && seen.iter().all(|ratio| *ratio < change), "{seen:?} {change}");
            assert!(seen.iter().any(|ratio| *ratio < change - 0.5), "{seen:?} {change}");
        }),
        sampler_row(
            &["dry_multiplier", "dry_base", "dry_allowed_length"],
            json!({"dry_multiplier": 0.5, "dry_base": 1.5, "dry_allowed_length": 3}),
            |response| drawn_from(response, |place| dried(place, 0.5, 1.5, 3, usize::MAX)),
        ),
        sampler_row(
            &["dry_penalty_last_n"],
            json!({"dry_multiplier": 0.5, "dry_base": 1.5, "dry_allowed_length": 1, "dry_penalty_last_n": 12}),
            |response| drawn_from(response, |place| dried(place, 0.5, 1.5, 1, 12)),
        ),
        sampler_row(
            &["dry_sequence_breakers"],
            json!({"dry_multiplier": 2, "dry_base": 1.5, "dry_allowed_length": 1, "dry_sequence_breakers": [" a"]}),
            |response| {
                // The prompt ends with a sequence breaker, and no repetition extends across it.
                let first = response.ask(json!({"n_predict": 1}));
                drawn_from(&first, |place| place.probabilities());
                let free = first.ask(json!({"dry_sequence_breakers": []}));
                drawn_from(&free, |place| dried(place, 2.0, 1.5, 1, usize::MAX));
            },
        ),
        sampler_row(
            &["mirostat", "mirostat_tau"],
            json!({"mirostat": 2, "mirostat_tau": 1.5, "n_predict": 1}),
            |response| {
                // The first bound is a surprise of 2 tau bits.
                drawn_from(response, |place| {
                    let n = place.probabilities().iter().filter(|(_, p)| -p.log2() <= 3.0).count();
                    place.first(n)
                });
            },
        ),
        sampler_row(&["mirostat_eta"], json!({"mirostat": 2, "mirostat_tau": 1.5, "mirostat_eta": 0.4}), |response| {
            let drawn = response.ask(json!({"n_probs": N_VOCAB, "post_sampling_probs": true}));
            let mu = std::cell::RefCell::new(3.0);
            drawn_from(response, |place| {
                let n = place.probabilities().iter().filter(|(_, p)| -p.log2() <= *mu.borrow()).count();
                let left = place.first(n);
                let token = drawn.tokens()[place.position];
                let surprise = -left.iter().find(|(id, _)| *id == token).expect("the token").1.log2();
                *mu.borrow_mut() -= 0.4 * (surprise - 1.5);
                left
            });
        }),
        sampler_row(
            &["adaptive_target", "adaptive_decay"],
            json!({"samplers": ["adaptive_p", "top_k"], "top_k": 20, "adaptive_target": 0.3, "adaptive_decay": 0.5}),
            |response| {
                let drawn = response.ask(json!({"n_probs": 1}));
                let mean = std::cell::Cell::new(0.3_f64);
                drawn_from(response, |place| {
                    let (before, target) = (place.first(20), (0.6 - mean.get()).clamp(0.0, 1.0));
                    let token = drawn.tokens()[place.position];
                    let p = before.iter().find(|(id, _)| *id == token).expect("the token").1;
                    mean.set(0.5 * mean.get() + 0.5 * p);
                    let weight = |p: f64| {
                        let x = (p - target).abs() / 0.3;
                        (5.0 - 10.0 * x * x / (1.0 + x)).exp()
                    };
                    let sum: f64 = before.iter().map(|(_, p)| weight(*p)).sum();
                    before.into_iter().map(|(id, p)| (id, weight(p) / sum)).collect()
                });
            },
        ),
        sampler_row(&["mirostat"], json!({"mirostat": 1, "mirostat_tau": 2, "n_predict": 1}), |response| {
            // Mirostat 1 keeps the k most probable tokens, with k from an estimate of Zipf's exponent.
            drawn_from(response, |place| {
                let p: Vec<f64> = place.probabilities().into_iter().map(|(_, p)| p).collect();
                let (mut products, mut squares) = (0.0, 0.0);
                for i in 0..99 {
                    let (t, b) = (((i + 2) as f64 / (i + 1) as f64).ln(), (p[i] / p[i + 1]).ln());
                    products += t * b;
                    squares += t * t;
                }
                let s = products / squares;
                let epsilon = s - 1.0;
                let k = ((epsilon * 2f64.powf(4.0)) / (1.0 - (N_VOCAB as f64).powf(-epsilon))).powf(1.0 / s);
                place.first((k as usize).max(1))
            });
        }),
        sampler_row(
            &["samplers"],
            json!({"samplers": ["top_k"], "top_k": 5, "temperature": 0.2, "min_p": 0.9}),
            |response| {
                drawn_from(response, |place| place.first(5));
                // The order matters: top_p measures probabilities before or after the temperature.
                let sent = json!({"top_p": 0.7, "temperature": 3});
                let sizes = [["top_p", "temperature"], ["temperature", "top_p"]].map(|order| {
                    let drawn = response.ask(with(
                        &sent,
                        json!({
                            "samplers": order, "n_predict": 1, "n_probs": N_VOCAB, "post_sampling_probs": true,
                        }),
                    ));
                    list(&drawn.answer, 0, ("top_probs", "prob")).len()
                });
                assert!(sizes[0] < sizes[1], "{sizes:?}");
            },
        ),
        sampler_row(&["min_keep"], json!({"top_p": 0.01, "min_keep": 4}), |response| {
            drawn_from(response, |place| place.first(4));
            drawn_from(&response.ask(json!({"min_keep": 0})), |place| place.first(1));
        }),
        sampler_row(&["seed"], json!({"n_predict": 16}), |response| {
            assert_eq!(response.content(), response.ask(json!({})).content());
            assert!((8..12).any(|seed| response.ask(json!({"seed": seed})).content() != response.content()));
            let drawn = response.ask(json!({"seed": -1}));
            let seed = drawn.setting("seed").as_u64().expect("the seed that was drawn");
            assert_eq!(drawn.ask(json!({"seed": seed})).content(), drawn.content());
        }),
        sampler_row(&["logit_bias"], json!({"logit_bias": [[65, -2.5], [66, false]], "n_predict": 2}), |response| {
            drawn_from(response, |place| {
                place.changed(|id, logit| match id {
                    65 => logit - 2.5,
                    66 => f64::NEG_INFINITY,
                    _ => logit,
                })
            });
            let forms =
                [json!({"65": -2.5, "66": false}), json!([{"token": 65, "bias": -2.5}, {"token": 66, "bias": false}])];
            for form in forms {
                assert_eq!(
                    response.ask(json!({"logit_bias": form})).setting("logit_bias"),
                    &json!([[65, -2.5], [66, false]])
                );
            }
            let by_text = response.ask(json!({"logit_bias": [[" red", 50]]}));
            assert!(by_text.content().starts_with(" red"), "{}", by_text.answer);
        }),
        sampler_row(&["logits_callback"], json!({"n_predict": 3}), |response| {
            let refused = response.refused(json!({"logits_callback": true}));
            assert_eq!(refused, "logits_callback: no callback is set; call foredraft_set_logits_callback first");
            response.engine.set_logits_hook(Some(Box::new(|_, logits, tokens| {
                logits[usize::try_from(tokens[tokens.len() - 1]).expect("a token")] += 2.5;
                Ok(())
            })));
            let expected = |place: &Place| place.changed(|_, logit| logit);
            // The reported distribution of the model is also that after the callback.
            drawn_from(&response.ask(json!({"logits_callback": true})), expected);
            let [own, changed] =
                [false, true].map(|is_on| response.ask(json!({"n_probs": N_VOCAB, "logits_callback": is_on})));
            let last = *history(response).last().expect("a token");
            let of = |answer: &Value| {
                let raw = list(answer, 0, ("top_logprobs", "logprob"));
                let logprob = |id| raw.iter().find(|(other, _)| *other == id).expect("every token").1;
                logprob(last) - logprob(if last == 65 { 66 } else { 65 })
            };
            assert!((of(&changed.answer) - of(&own.answer) - 2.5).abs() < 1e-3);
            response.engine.set_logits_hook(None);
        }),
        sampler_row(
            &["n_probs", "post_sampling_probs", "completion_probabilities"],
            json!({"n_probs": 3}),
            |response| {
                let all = response.answer["completion_probabilities"].as_array().expect("probabilities");
                assert_eq!(all.len(), response.tokens().len());
                for (item, token) in all.iter().zip(response.tokens()) {
                    assert_eq!((&item["id"], &item["content"]), (&json!(token), &item["token"]));
                    let (old, new) = (&item["probs"], &item["top_logprobs"]);
                    for i in 0..3 {
                        assert_eq!(old[i]["tok_str"], new[i]["token"]);
                        assert!((float(&old[i]["prob"]) - float(&new[i]["logprob"]).exp()).abs() < 1e-6);
                        let bytes = new[i]["token"].as_str().expect("a piece").as_bytes();
                        assert_eq!(new[i]["bytes"], json!(bytes), "{item}");
                    }
                    assert!(new[0]["logprob"].as_f64() >= new[1]["logprob"].as_f64());
                    assert!(item["prob"].is_null() && item["top_probs"].is_null() && new[3].is_null(), "{item}");
                }
                let post = response.ask(json!({"post_sampling_probs": true, "top_k": 2}));
                for item in post.answer["completion_probabilities"].as_array().expect("probabilities") {
                    let top: Vec<f64> =
                        item["top_probs"].as_array().expect("a list").iter().map(|top| float(&top["prob"])).collect();
                    assert!((top.iter().sum::<f64>() - 1.0).abs() < 1e-4 && top.len() <= 2, "top_k leaves two: {item}");
                    assert!(top.iter().any(|p| (p - float(&item["prob"])).abs() < 1e-6));
                    assert!(
                        (float(&item["probs"][0]["prob"]) - top[0]).abs() < 1e-6,
                        "the old server's form, too: {item}"
                    );
                    assert!(item["logprob"].is_null() && item["top_logprobs"].is_null(), "{item}");
                }
                assert!(response.ask(json!({"n_probs": 0})).answer["completion_probabilities"].is_null());
            },
        ),
        row(
            &["n_beams"],
            json!({"prompt": "Once upon a time", "n_beams": 8, "n_probs": 1, "temperature": 0, "repeat_penalty": 1}),
            |response| {
                // Beam search is deterministic and draws nothing. That it finds more probable outputs is tested in requests/beams.rs.
                assert_eq!(response.ask(json!({"seed": 8, "temperature": 2})).tokens(), response.tokens());
                assert_eq!(response.answer["completion_probabilities"].as_array().map(Vec::len), Some(16));
                // One beam is no search: the output is the greedy one.
                let greedy = response.ask(json!({"n_beams": 1}));
                assert_eq!(greedy.tokens(), response.ask(json!({"n_beams": null})).tokens());
                assert_ne!(greedy.tokens(), response.tokens());
                assert!(response.refused(json!({"n_beams": 1000})).starts_with("n_beams: expected a whole number"));
            },
        ),
    ]
}

/// DRY by its definition, in quadratic time: a token is penalized by the longest repetition that it would extend.
fn dried(place: &Place, multiplier: f64, base: f64, allowed: usize, window: usize) -> Vec<(i64, f64)> {
    let history = &place.history[place.history.len().saturating_sub(window)..];
    let longest = |id: i64| {
        let ends = (0..history.len()).filter(|end| history[*end] == id);
        ends.map(|end| (0..end).take_while(|back| history[end - 1 - back] == history[history.len() - 1 - back]).count())
            .max()
            .unwrap_or(0)
    };
    place.changed(|id, logit| match longest(id) {
        length if length >= allowed.max(1) => logit - multiplier * base.powi((length - allowed) as i32),
        _ => logit,
    })
}

#[test]
fn sampler_fields_define_the_sampling_distribution() {
    run(&start(json!({"n_ctx": 256})), &rows());
}
