//! What llama.cpp's grammar parser does not check before it expands a repetition.
//!
//! It writes `x{m,n}` out as m copies of x and n - m rules that hold one more: with n below m it counts down from
//! 2^64, adding a rule each time, and a long x takes gigabytes. So the text is read here first, as far as sizes need it.

/// Most elements (characters, classes, references) that a grammar may expand to. llama.cpp takes 8 bytes for each, and
/// some hundred for each rule.
const MAX_ELEMENTS: usize = 1 << 21;
/// What a rule takes beside its elements, in elements.
const RULE: usize = 16;

/// Why a grammar must not be given to llama.cpp's parser; `Ok` does not mean that it parses.
pub(super) fn check(gbnf: &str) -> Result<(), String> {
    let mut text = gbnf.bytes().peekable();
    // Elements of the symbol that a repetition would repeat, and of everything.
    let (mut symbol, mut total) = (0_usize, 0_usize);
    while let Some(byte) = text.next() {
        match byte {
            b'#' => while text.next_if(|byte| !matches!(byte, b'\n' | b'\r')).is_some() {},
            b'"' | b'[' => {
                let end = if byte == b'"' { b'"' } else { b']' };
                symbol = 0;
                while let Some(byte) = text.next().filter(|byte| *byte != end) {
                    symbol += 1;
                    if byte == b'\\' {
                        text.next();
                    }
                }
                total += symbol;
            }
            b'<' => {
                while text.next().is_some_and(|byte| byte != b'>') {}
                symbol = 1;
                total += 1;
            }
            b'{' => {
                let (least, most) = bounds(&mut text)?;
                let copies = symbol.saturating_mul(least);
                let rules = most.saturating_sub(least).saturating_mul(symbol.saturating_add(RULE));
                symbol = copies.saturating_add(1);
                total = total.saturating_add(copies).saturating_add(rules);
            }
            b'*' | b'+' | b'?' => total = total.saturating_add(symbol).saturating_add(RULE),
            // A reference, a group's end, any character: one element; a name counts once for each letter.
            b')' | b'.' | b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                symbol = 1;
                total += 1;
            }
            _ => {}
        }
        if total > MAX_ELEMENTS {
            return Err(format!("expands to more than {MAX_ELEMENTS} characters and rules"));
        }
    }
    Ok(())
}

/// The numbers of `m}`, `m,}` or `m,n}`; what is none of these is left to llama.cpp to refuse.
fn bounds(text: &mut impl Iterator<Item = u8>) -> Result<(usize, usize), String> {
    let inside: Vec<u8> = text.take_while(|byte| *byte != b'}').collect();
    let inside = String::from_utf8_lossy(&inside).into_owned();
    let (least, most) = inside.split_once(',').unwrap_or((&inside, &inside));
    let least: usize = least.trim().parse().unwrap_or(0);
    match most.trim().parse::<usize>() {
        Ok(most) if most < least => Err(format!("a repetition {{{inside}}} of at least {least} and at most {most}")),
        Ok(most) => Ok((least, most)),
        Err(_) => Ok((least, least)),
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn what_would_eat_the_memory_is_refused() {
        let long = format!("root ::= \"{}\"{{2000}}", "a".repeat(10_000));
        let many = format!("root ::= {}", "\"a\"{0,2000} ".repeat(100));
        for (gbnf, why) in [
            ("root ::= \"a\"{5,2}", "{5,2}"),
            ("root ::= [a-z]{ 7 , 3 }", "at least 7 and at most 3"),
            ("root ::= \"a\"{4000000}", "expands to more than"),
            (&long, "expands to more than"),
            (&many, "expands to more than"),
        ] {
            let shown: String = gbnf.chars().take(40).collect();
            let error = check(gbnf).expect_err(&shown);
            assert!(error.contains(why), "{shown}: {error}");
        }
    }

    #[test]
    fn ordinary_grammars_pass() {
        for gbnf in [
            "root ::= \"a\"{2,5}",
            "root ::= [a-z]{20,200}",
            "root ::= item{3} # a comment {9,1}\nitem ::= \"{9,1}\" | [{9,1}]",
            "root ::= (\"x\" | <[7]>){1,}",
            "root ::= \"\\\"{5,2}\"",
        ] {
            assert_eq!(check(gbnf), Ok(()), "{gbnf}");
        }
    }
}
