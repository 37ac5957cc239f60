//! `make bench`: tokens a second without speculation and with each way of drafting, on texts of several kinds.
//!
//!     make bench                                     the shipped pair, and the enlarged target if `make inflate` made it
//!     make bench ARGS="target.gguf draft.gguf [5]"   another pair, 5 repetitions (3 by default)

mod host;

use host::{Cost, Host, Result};
use serde_json::{Value, json};

/// Ways of speculating, plain generation first.
const WAYS: [&str; 6] = ["none", "auto", "draft", "ngram-cache", "ngram-mod", "suffix"];

/// A kind of text, its prompt and the temperature it is written at: from what a draft guesses easily to what nobody can.
const TEXTS: [(&str, &str, f64); 4] = [
    (
        "repetition",
        "Repeat after me: Karl was 5 years old and lived near the hill. He carried a little black whistle. It was snowy.",
        0.0,
    ),
    (
        "record",
        "Write this as JSON. Mia was 7 years old and lived near the river. She carried a new red kite. It was windy. \
      Mia met a fox. They ate soup. In the end Mia was proud.",
        0.0,
    ),
    ("story", "Tell me a story about a child who lost a ring.", 0.0),
    ("noise", "Tell me a story about Tom and a snail.", 5.0),
];

fn main() {
    if let Err(error) = bench() {
        eprintln!("bench: {error}");
        std::process::exit(1);
    }
}

fn bench() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let repetitions = args.get(2).map_or(Ok(3), |text| text.parse())?;
    let host = Host::open()?;
    println!(
        "Tokens a second, the median of {repetitions} repetitions; in brackets the ratio to plain generation and the share of\ndrafted tokens accepted."
    );
    for pair in host::pairs(&args) {
        host.init(&pair.target, &pair.draft)?;
        println!("\n{} ({})", pair.name, pair.target.display());
        print!("{:12}", "");
        TEXTS.iter().for_each(|(name, ..)| print!("{name:>24}"));
        println!();
        let columns = TEXTS.iter().map(|text| column(&host, text, repetitions)).collect::<Result<Vec<_>>>()?;
        for (row, way) in WAYS.iter().enumerate() {
            print!("{:12}", if row == 0 { "plain" } else { way });
            for column in &columns {
                let (cost, plain) = (&column[row], &column[0]);
                let extra = if row == 0 {
                    String::new()
                } else {
                    format!(" ({:.2}, {})", cost.speed() / plain.speed(), cost.acceptance())
                };
                print!("{:>24}", format!("{:.1}{extra}", cost.speed()));
            }
            println!();
        }
    }
    Ok(())
}

/// What each of [`WAYS`] costs on a text: the median of some repetitions, which take turns so that a disturbance hits all.
fn column(host: &Host, &(_, prompt, temperature): &(&str, &str, f64), repetitions: usize) -> Result<Vec<Cost>> {
    let mut runs = vec![Vec::new(); WAYS.len()];
    for repetition in 0..=repetitions {
        for (runs, way) in runs.iter_mut().zip(WAYS) {
            let response = host.call("get_completion", &request(prompt, temperature, repetition, way))?;
            if repetition > 0 {
                runs.push(Cost::of(&response)); // the first one warms up
            }
        }
    }
    Ok(runs.into_iter().map(median).collect())
}

fn request(prompt: &str, temperature: f64, seed: usize, way: &str) -> Value {
    json!({
        "messages": [{ "role": "user", "content": prompt }], "n_predict": 96, "ignore_eos": true, "temperature": temperature,
        "top_k": 0, "top_p": 1, "repeat_penalty": 1, "seed": seed,
        "speculative": if way == "none" { json!(false) } else { json!({ "type": way }) },
    })
}

fn median(mut costs: Vec<Cost>) -> Cost {
    costs.sort_by(|a, b| a.speed().total_cmp(&b.speed()));
    costs.swap_remove(costs.len() / 2)
}
