use super::parse;

fn error(gbnf: &str) -> String {
    let shown: String = gbnf.chars().take(60).collect();
    parse(gbnf, &|text| (text == "<x>").then_some(7)).err().unwrap_or_else(|| panic!("{shown} is a grammar"))
}

#[test]
fn errors_say_where_and_what() {
    for (gbnf, why) in [
        ("", "line 1, column 1: the grammar does not contain a 'root' rule at the end"),
        ("# nothing", "does not contain a 'root' rule"),
        ("start ::= \"a\"", "does not contain a 'root' rule"),
        ("root ::= (", "line 1, column 11: expecting ')' at the end"),
        ("root ::= (\"a\"]", "line 1, column 14: expecting ')' at \"]\""),
        ("root ::= \"a\"\nb = \"c\"", "line 2, column 3: expecting ::= at \"= \\\"c\\\"\""),
        ("?", "line 1, column 1: expecting a rule's name at \"?\""),
        ("root ::= \"é\" )", "line 1, column 14: expecting newline or end at \")\""),
        ("root ::= \"a\"\nb ::= nowhere", "line 2, column 7: undefined rule 'nowhere'"),
        ("root ::= root \"a\" | \"a\"", "line 1, column 1: left recursion in the rule 'root'"),
        ("root ::= a\na ::= b\nb ::= a \"x\"", "left recursion in the rule 'a'"),
        ("root ::= \"abc", "line 1, column 10: unexpected end of input: the \" is not closed"),
        ("root ::= [abc", "line 1, column 10: unexpected end of input: the [ is not closed"),
        ("root ::= \"\\q\"", "line 1, column 11: unknown escape at \"\\\\q"),
        ("root ::= \"\\u12\"", "line 1, column 13: expecting 4 hex chars"),
        ("root ::= *", "line 1, column 10: expecting preceding item to */+/?/{"),
        ("root ::= \"a\"{", "line 1, column 14: expecting an int at the end"),
        ("root ::= \"a\"{1", "expecting ',' at the end"),
        ("root ::= \"a\"{1,x}", "expecting '}' at \"x}\""),
        ("root ::= \"a\"{5,2}", "line 1, column 13: a repetition of at least 5 and at most 2"),
        ("root ::= \"a\"{2001}", "number of repetitions exceeds 2000"),
        ("root ::= (\"a\"{0,1000}){3}", "multiplied by the new repetition exceeds 2000"),
        ("root ::= \"a\"{99999999999999999999}", "a number too large"),
        ("root ::= <y>", "line 1, column 10: invalid token"),
        ("root ::= <[4294967296]>", "line 1, column 12: parsed token id is too big"),
        ("root ::= <[5>", "expecting ']' at \">\""),
        ("root ::= !\"a\"", "line 1, column 11: expecting '<'"),
        ("root ::= <x", "expecting '>' at the end"),
    ] {
        let message = error(gbnf);
        assert!(message.contains(why), "{gbnf:?}: {message}");
    }
}

#[test]
fn what_would_eat_the_memory_is_refused() {
    let long = format!("root ::= \"{}\"{{2000}}", "a".repeat(10_000));
    let many = format!("root ::= {}", "\"a\"{0,2000} ".repeat(1000));
    for gbnf in [&long, &many] {
        assert!(error(gbnf).contains("expands to more than"), "{}", error(gbnf));
    }
}

#[test]
fn ordinary_grammars_pass() {
    let nested = format!("root ::= {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000));
    for gbnf in [
        "root ::= \"a\"{2,5}",
        "root ::= item{3} # a comment {9,1}\nitem ::= \"{9,1}\" | [{9,1}]",
        "root ::= (\"x\" | <[7]> | !<x>){1,}",
        "root ::= \"\\\"{5,2}\"",
        "root ::= \"a\"{3,9000}",
        "root ::= (\"a\"*)*",
        &nested,
    ] {
        assert!(parse(gbnf, &|_| Some(7)).is_ok(), "{}", gbnf.chars().take(60).collect::<String>());
    }
}
