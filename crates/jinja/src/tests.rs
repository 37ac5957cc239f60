use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{
    Fault, FaultKind, MAX_DEPTH, PARSE_STACK, RenderLimits, Run, StopSignal, Template, TemplateResult, Value, depth,
    stack, stop_after,
};

const STEPS: u64 = 4_000_000;
const MEMORY: usize = 64 << 20;

/// Runs something on a thread with the stack that the crate asks for.
fn on_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread =
            std::thread::Builder::new().stack_size(stack(MAX_DEPTH).max(PARSE_STACK)).spawn_scoped(scope, work);
        thread.unwrap().join().unwrap()
    })
}

fn rendered(source: &str, interrupt: Option<StopSignal>) -> (TemplateResult<String>, u64) {
    on_stack(|| {
        let template = match Template::parse(source) {
            Ok(template) => template,
            Err(fault) => return (Err(fault), 0),
        };
        let run = Run::new(RenderLimits {
            steps: STEPS,
            memory: MEMORY,
            output: MEMORY,
            depth: MAX_DEPTH,
            interrupt,
            mark: None,
        });
        let pairs = [("a", Value::Int(1)), ("b", Value::None)].map(|(name, value)| (run.text(name).unwrap(), value));
        let given = run.dict(pairs).unwrap();
        let result = template.render(&run, vec![("given", given), ("unused", Value::None)], 0);
        (result, run.steps())
    })
}

fn check(source: &str, expected: &str) {
    assert_eq!(rendered(source, None).0.as_deref(), Ok(expected), "{source}");
}

/// Checks what an expression prints.
fn check_value(expression: &str, expected: &str) {
    check(&format!("{{{{ {expression} }}}}"), expected);
}

fn fault(source: &str) -> Fault {
    *rendered(source, None).0.expect_err(source)
}

fn check_fault(source: &str, expected: &str) {
    assert_eq!(fault(source).to_string(), expected, "{source}");
}

#[test]
fn expressions_follow_python() {
    for (expression, expected) in [
        ("7 // 2 ~ ' ' ~ -7 // 2 ~ ' ' ~ -7 % 3 ~ ' ' ~ 7 % -3 ~ ' ' ~ 1 / 4 ~ ' ' ~ 2 ** 10", "3 -4 2 -2 0.25 1024"),
        (
            "[1 == 1.0, true == 1, [1] == [1.0], (1,) == [1], 1 < 2 < 3, 'a' in 'ab', 2 not in [1]]",
            "[True, True, True, False, True, True, True]",
        ),
        ("['abc'[-1], 'abc'[::-1], 'abcdef'[1:5:2], [1, 2, 3][5:], 'aé😀'[1:]]", "['c', 'cba', 'bd', [], 'é😀']"),
        ("{'a': [1, none, true, 'it\\'s']}", "{'a': [1, None, True, \"it's\"]}"),
        ("'a' 'b' ~ 1.0 ~ none", "ab1.0None"),
        ("[1] + [2] * 2", "[1, 2, 2]"),
        ("1 if false", ""),
        ("not given.b and given.a is not none", "True"),
        ("given.x.y['z'].w is defined", "False"),
        ("[given.x, given['x']]|length ~ (given.x.y or 'd')", "2d"),
        ("[1e16, 1e15, 0.0001, 0.00001, 1e100]", "[1e+16, 1000000000000000.0, 0.0001, 1e-05, 1e+100]"),
        ("'\\x41\\u00e9\\d'", "Aé\\d"),
    ] {
        check_value(expression, expected);
    }
    check_fault("{{ 1 + 'a' }}", "cannot calculate a number + a string (line 1)");
    check_fault("\n{{ nope(1) }}", "'nope' is undefined (line 2)");
    check_fault("{{ 1 // 0 }}", "division by zero (line 1)");
    check_fault("{{ 2 ** 200 }}", "the number is too large (line 1)");
    check_fault("{{ '{:>4}'.format(1) }}", "format: there is no argument for '{:>4}' (line 1)");
    check_fault("{{ '{'.format(1) }}", "format: a brace without its other one (line 1)");
    check_fault("{{ '%s' % 1 }}", "cannot calculate a string % a number (line 1)");
}

/// Checks methods and formats that real templates use and `minijinja` refused or did otherwise.
#[test]
fn methods_and_formatting_follow_python() {
    for (expression, expected) in [
        ("'aXbXc'.replace('X', '-', 1) ~ 'aaa'|replace('a', 'b', 2) ~ 'ab'|replace('', '-')", "a-bXcbba-a-b-"),
        ("'a b c'.rsplit(' ', 1) ~ ' a  b c '.split(none, 1)", "['a b', 'c']['a', 'b c ']"),
        (
            "['12'|int, ' -3 '|int, '3.7'|int, 'x'|int, 'x'|int(5), '1f'|int(base=16), 3.9|int]",
            "[12, -3, 3, 0, 5, 31, 3]",
        ),
        ("'{} {1} {x}|{{{}}}'.format(1, [5], x='a')", "1 [5] a|{[5]}"),
        ("'{0}{1}{0}'.format('a', none)", "aNonea"),
        ("['a\\nb'.splitlines(), 'abc'.find('c')]", "[['a', 'b'], 2]"),
        ("{'b': 1, 'A': 2}|dictsort ~ ['b', 'A']|sort", "[('A', 2), ('b', 1)]['A', 'b']"),
        ("' a b '|strip ~ 'a,b'|split(',') ~ 'xa'|lstrip('x')", "a b['a', 'b']a"),
        ("none|map('upper')|list ~ 'abc'|map('upper')|join", "[]ABC"),
    ] {
        check_value(expression, expected);
    }
}

#[test]
fn every_list_and_dictionary_can_be_modified() {
    check("{% set l = [1] %}{% set m = l %}{% set _ = m.append(2) %}{{ l }}", "[1, 2]");
    check(
        "{% set l = [1, 2] %}{{ l.pop(0) }}{{ l.insert(0, 3) }}{{ l.extend([4]) }}{{ l.reverse() }}{{ l }}",
        "1NoneNoneNone[4, 2, 3]",
    );
    check("{% set d = {'a': 1} %}{{ d.update({'b': 2}, c=3) }}{{ d.pop('a') }}{{ d }}", "None1{'b': 2, 'c': 3}");
    // A literal of a string is not changed.
    check("{% set x = '{% set y = [] %}' %}{{ x }}", "{% set y = [] %}");
}

#[test]
fn statements_follow_jinja2() {
    for (source, expected) in [
        ("{% for x in [3, 1] if x > 1 %}{{ loop.index }}{{ x }}{% else %}-{% endfor %}", "13"),
        (
            "{% for x in [1, [2]] recursive %}{% if x is sequence %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
            "1(2)",
        ),
        ("{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}", "1"),
        (
            "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{% call m(1) %}c{% endcall %}{{ m(3, b=4) }}",
            "12c34",
        ),
        ("{{ 'ßé'|upper }}{{ 'ßé'|upper == 'SSÉ' }}", "SSÉTrue"),
        ("{% set x | upper %}ab{% endset %}{{ x }}{% filter replace('a', 'b') %}aa{% endfilter %}", "ABbb"),
        ("{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "12"),
        ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
        ("a  {%- if true -%}  b  {%- endif +%}\n c", "ab\n c"),
        ("{#- a -#} {% raw %}{{ x }}{% endraw %}", "{{ x }}"),
        (
            "{% set n = namespace(i=0) %}{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif %}{% set n.i = n.i + i %}{% endfor %}{{ n.i }}",
            "5",
        ),
        ("{% generation %}a{% endgeneration %}{% block b %}c{% endblock %}", "ac"),
    ] {
        check(source, expected);
    }
    check_fault("{% if 1 %}", "unexpected end of the template, expected 'endif' (line 1)");
    check_fault("a\n{% nope %}", "unknown tag 'nope' (line 2)");
    check_fault("{% break %}", "'break' outside of a loop (line 1)");
}

#[test]
fn undefined_values_have_undefined_attributes() {
    check_value("x.y.z ~ x['a'].b ~ x|length ~ x|join(',') ~ x|upper ~ (x is defined)", "0False");
    check("{% for a in x.y %}{% endfor %}{{ 'a' in x }}", "False");
    check_fault("{{ x.y() }}", "an undefined value has no method 'y' (line 1)");
}

#[test]
fn dates_are_formatted() {
    for (seconds, format, expected) in [
        (0, "%A %d %B %Y %H:%M:%S %I %p", "Thursday 01 January 1970 00:00:00 12 AM"),
        (951_782_400, "%F %a %b", "2000-02-29 Tue Feb"),
        (1_709_251_199, "%F %T %-d/%-m/%y %e", "2024-02-29 23:59:59 29/2/24 29"),
        (4_102_444_800, "%Y-%m-%d %-I%p %Z %% %! %", "2100-01-01 12AM UTC % %! %"),
    ] {
        assert_eq!(crate::strftime(format, seconds), expected, "{seconds}");
    }
    check_value("strftime_now('%Y')", "1970");
}

/// `n.x` grows 60 times, and `n.y` in the same way.
fn doubled(start: &str, next: &str) -> String {
    let other = next.replace("n.x", "n.y");
    format!(
        "{{% set n = namespace(x={start}, y={start}) %}}{{% for i in range(60) %}}{{% set n.x = {next} %}}\
         {{% set n.y = {other} %}}{{% endfor %}}"
    )
}

fn often(body: &str) -> String {
    format!("{{% set x = 'a' * 10000000 %}}{{% for i in range(100000) %}}{body}{{% endfor %}}")
}

/// Every way to make much of little ends with the limit of steps or memory. None takes more memory than that, because memory is counted before
/// it is used.
#[test]
fn bombs_reach_a_limit() {
    let mut bombs: Vec<String> = [
        // Sizes and widths.
        "{{ 'a'|indent(1000000000, true) }}",
        "{{ ('a\n' * 1000)|indent(1000000) }}",
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ ('a' * 100000).join(['b'] * 100000) }}",
        "{{ (['b'] * 100000)|join('a' * 100000) }}",
        "{{ ('\\\\' * 1000000)|tojson|tojson|tojson|tojson|tojson|tojson|tojson|tojson }}",
        "{{ strftime_now('%A' * 10000000) }}",
        // Loops, and what they gather.
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% set x %}{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}{% endset %}",
        "{% for a in range(99999) %}{% set x = range(99999)|list %}{% endfor %}",
        "{% set d = {} %}{% for i in range(99999) %}{% set _ = d.update({i: 1}) %}{% endfor %}",
        "{{ range(99999)|unique|list }}",
        "{{ range(99999)|map(attribute='a' * 10000000)|list }}",
        "{{ range(99999)|sort(attribute='a,' * 5000000) }}",
        // Recursion.
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
        "{% macro f(a) %}{{ f([a]) }}{% endmacro %}{{ f(1) }}",
        "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}{% endcall %}{% endmacro %}{{ g() }}",
        "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
        // Values that contain themselves.
        "{% set n = namespace(x=1) %}{% set n.x = n %}{{ n }}",
        "{% set n = namespace(x=1) %}{% set n.x = [n] %}{{ n.x|string }}",
        "{% set a = [] %}{% set _ = a.append(a) %}{{ a }}",
        "{% set a = [] %}{% set _ = a.append(a) %}{{ a|tojson }}",
        "{% set a = [] %}{% set b = [a] %}{% set _ = a.append(b) %}{{ a == b }}",
        "{% set a = {} %}{% set _ = a.update(x=a) %}{{ a }}",
    ]
    .map(str::to_owned)
    .into();
    bombs.extend(
        [
            ("'a'", "n.x ~ n.x"),
            ("'a'", "n.x + n.x"),
            ("'a'", "'{0}{0}'.format(n.x)"),
            ("'a'", "[n.x, n.x]|join"),
            ("'ab'", "n.x.join(n.x)"),
            ("'aa'", "n.x|replace('a', 'aa')"),
            ("'aa'", "n.x.replace('', 'b')"),
            ("[1]", "n.x + n.x"),
        ]
        .map(|(start, next)| doubled(start, next)),
    );
    // Values that are small as they are shared, and large when something walks through them.
    bombs.extend(
        ["{{ n.x }}", "{{ n.x|tojson }}", "{{ n.x == n.y }}", "{{ [n.x, n.y]|sort }}"]
            .map(|walk| doubled("[1]", "[n.x, n.x[:]]") + walk),
    );
    bombs.extend(
        [
            "{{ x|length }}",
            "{{ x[-1] }}",
            "{{ x.find('b') }}",
            "{{ x.strip('b') }}",
            "{{ 'b' in x }}",
            "{{ x == x ~ '' }}",
            "{{ {x: 1}[x] }}",
            "{{ x is upper }}",
            "{{ x|int }}",
        ]
        .map(often),
    );
    for bomb in bombs {
        let (result, steps) = rendered(&bomb, None);
        let fault = result.expect_err(&bomb);
        assert!(matches!(fault.kind, FaultKind::Limit | FaultKind::Depth), "{bomb}: {fault}");
        // One operation can exceed the limit by what it announces, but has not done.
        assert!(steps <= 2 * STEPS || fault.message.starts_with("takes"), "{bomb}: {steps} steps");
    }
}

/// llama.cpp's engine ended the process by SIGFPE, looped forever, or worked for 10 to 90 seconds.
#[test]
fn divisions_slices_and_filters_that_held_another_engine_end() {
    check_fault("{{ 1 is divisibleby 0 }}", "division by zero (line 1)");
    check_value("'ab'[0::-9223372036854775807 - 1]", "a");
    check_value("'ab'[::9223372036854775807] ~ [1, 2][::-9223372036854775808]", "a[2]");
    let deep = "{% set ns = namespace(l=[]) %}{% for i in range(200) %}{% set ns.l = [ns.l] %}{% endfor %}";
    for source in [
        "{% set l = range(99999)|list %}{{ l|select('in', l)|list|length }}".to_owned(),
        "{% set l = range(99999)|list %}{% for i in l %}{% set x = l|sort(reverse=true) %}{% endfor %}".to_owned(),
        format!("{deep}{{% for i in range(99999) %}}{{% set x = ns.l|tojson(indent=99999) %}}{{% endfor %}}"),
    ] {
        reaches_a_limit(&source);
    }
}

/// Rust's own sort panics where it sees that an order is not total.
#[test]
fn values_without_an_order_are_sorted_and_a_limit_ends_a_sort() {
    for filter in ["sort", "sort(reverse=true)"] {
        let source = format!("{{{{ (['nan'|float, 3, 1, 'nan'|float, 2] * 40)|{filter}|length }}}}");
        check(&source, "200");
    }
    on_stack(|| {
        let template = Template::parse("{{ ('Sphinx of black quartz, judge my vow! ' * 9)|sort|length }}").unwrap();
        let mut n_limited = 0;
        for steps in (500..20_000).step_by(37) {
            let run = Run::new(RenderLimits {
                steps,
                memory: MEMORY,
                output: MEMORY,
                depth: MAX_DEPTH,
                interrupt: None,
                mark: None,
            });
            match template.render(&run, Vec::new(), 0) {
                Ok(text) => assert_eq!(text, "342"),
                Err(fault) => {
                    assert_eq!(fault.kind, FaultKind::Limit, "{fault}");
                    n_limited += 1;
                }
            }
        }
        assert!(n_limited > 10, "{n_limited}");
    });
    check_value("[3, 1, 2, 1]|sort ~ [3, 1, 2]|sort(reverse=true) ~ 'bca'|sort|join", "[1, 1, 2, 3][3, 2, 1]abc");
    // Equal ones stay in their order.
    let items = "[{'k': 1, 'n': 0}, {'k': 0, 'n': 1}, {'k': 1, 'n': 2}, {'k': 0, 'n': 3}]";
    check_value(&format!("{items}|sort(attribute='k')|map(attribute='n')|list"), "[1, 3, 0, 2]");
    check_value(&format!("{items}|sort(attribute='k', reverse=true)|map(attribute='n')|list"), "[0, 2, 1, 3]");
}

/// Each rendering ends within its own limit, and the signal ends all of them together.
#[test]
fn signal_bounds_the_steps_of_several_renderings() {
    let interrupt = stop_after(50_000);
    let renderings = (0..10).map(|_| {
        let source = "{% for i in range(6000) %}{{ i }}{% endfor %}";
        rendered(source, Some(StopSignal::clone(&interrupt)))
    });
    let (results, steps): (Vec<_>, Vec<u64>) = renderings.unzip();
    assert!(results.first().is_some_and(Result::is_ok) && results.last().is_some_and(Result::is_err));
    let sum: u64 = steps.iter().sum();
    assert!((50_000..100_000).contains(&sum), "{steps:?}");
}

/// `*list` and `**dictionary` make many arguments of few characters.
#[test]
fn long_argument_lists_reach_a_limit() {
    let stars = |name: &str, times: usize| vec![format!("*{name}"); times].join(", ");
    let names = |n: usize| (0..n).map(|at| format!("a{at}")).collect::<Vec<_>>().join(", ");
    let keys = "{% set d = {} %}{% for i in range(4000) %}{% set _ = d.update({'k' ~ i: i}) %}{% endfor %}";
    let list = "{% set l = [1] * 100000 %}";
    for call in ["namespace", "dict", "f", "'{0}'.format", "[].append", "range"] {
        for arguments in [stars("l", 400), format!("{}, {}", names(9000), stars("l", 300))] {
            let macros = format!("{{% macro f({}) %}}{{% endmacro %}}", names(9000));
            reaches_a_limit(&format!("{macros}{list}{{% for a in [1] %}}{{{{ {call}({arguments}) }}}}{{% endfor %}}"));
        }
    }
    for filter in ["default", "map", "select", "join"] {
        reaches_a_limit(&format!("{list}{{{{ [1]|{filter}({}) }}}}", stars("l", 400)));
    }
    for each in ["select('eq', *l)", "rejectattr('a', 'eq', *l)"] {
        reaches_a_limit(&format!("{list}{{{{ range(99999)|{each}|list }}}}"));
    }
    let parameters = names(9000);
    reaches_a_limit(&format!("{keys}{{% macro f({parameters}) %}}{{{{ kwargs }}}}{{% endmacro %}}{{{{ f(**d) }}}}"));
    reaches_a_limit(&format!("{keys}{{{{ ('{{k1}}' * 100000).format(**d) }}}}"));
    // One macro with many parameters, and one target with many names.
    reaches_a_limit(&format!(
        "{{% macro f({parameters}) %}}{{% endmacro %}}{{% for i in range(99999) %}}{{{{ f() }}}}{{% endfor %}}"
    ));
    let targets = names(2000);
    reaches_a_limit(&format!("{{% for {targets} in [range(2000)] * 4000 %}}{{% endfor %}}"));
}

fn reaches_a_limit(source: &str) {
    let (result, steps) = rendered(source, None);
    let end = source.get(source.len().saturating_sub(80)..).unwrap_or(source);
    let fault = result.expect_err(end);
    assert_eq!(fault.kind, FaultKind::Limit, "{end}: {fault}");
    assert!(steps <= 2 * STEPS, "{end}: {steps} steps");
}

/// Walking through a dictionary copies its pairs. The copies of all levels count.
#[test]
fn copies_on_the_way_through_a_value_count_as_memory() {
    let source = "{% set d = {'x': 0} %}{% for i in range(6000) %}{% set _ = d.update({'k' ~ i: 1}) %}{% endfor %}{% set _ = d.update(x=d) %}";
    for walk in ["{{ d }}", "{{ d|tojson }}"] {
        let fault = fault(&format!("{source}{walk}"));
        assert!(fault.message.starts_with("needs more than"), "{walk}: {fault}");
    }
}

/// Templates are freed on threads of the host, whose stacks can be small.
#[test]
fn templates_are_freed_on_a_small_stack() {
    let blocks =
        |open: &str, inside: &str, close: &str, n: usize| format!("{}{inside}{}", open.repeat(n), close.repeat(n));
    let sources = [
        format!("{{{{ 1{} }}}}", " < 2".repeat(32_000)),
        format!("{{{{ 1{} }}}}", " + 2".repeat(198)),
        format!("{{{{ 1{} }}}}", " + 2".repeat(32_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(198)),
        format!("{{{{ {}1{} }}}}", "[".repeat(198), "]".repeat(198)),
        format!("{{{{ {}1{} }}}}", "f(a=".repeat(198), ")".repeat(198)),
        format!("{{{{ 1{} }}}}", "|default(1)".repeat(198)),
        blocks("{% if 1 %}", "a", "{% endif %}", 198),
        blocks("{% for a in b %}", "a", "{% endfor %}", 198),
        blocks("{% macro m() %}", "a", "{% endmacro %}", 198),
        blocks("{% filter upper %}", &format!("{{{{ 1{} }}}}", " + 2".repeat(190)), "{% endfilter %}", 198),
    ];
    for source in sources {
        let end = source.chars().take(40).collect::<String>();
        // A refused template's parts are freed by the parser, on its own stack.
        let Ok(template) = on_stack(|| Template::parse(&source)) else { continue };
        let freed = std::thread::Builder::new().stack_size(64 << 10).spawn(move || drop(template)).unwrap();
        freed.join().expect(&end);
    }
}

#[test]
fn sources_that_nest_deeply_are_refused() {
    let repeated = [
        "(",
        "[",
        "-",
        "not ",
        "{1:",
        "a(",
        "1 if ",
        "a[",
        "{% if 1 %}",
        "{% for a in b %}",
        "{% call a() %}",
        "{% set (",
    ];
    for part in repeated {
        let open = if part.starts_with("{%") { "" } else { "{{ " };
        let fault = fault(&format!("{open}{}", part.repeat(20_000)));
        assert_eq!(fault.kind, FaultKind::Syntax, "{part}: {fault}");
    }
    for part in ["+1", "~1", "|abs", ".a", "[1]", "()", " if 1", " or 1", " is defined", "**1"] {
        let fault = fault(&format!("{{{{ 1{} }}}}", part.repeat(20_000)));
        assert_eq!(fault.message, "is nested more than 200 levels", "{part}: {fault}");
    }
    let elif = format!("{{% if false %}}{}{{% else %}}a{{% endif %}}", "{% elif false %}".repeat(3000));
    check(&elif, "a");
}

/// A thread whose stack is too small ends the process.
#[test]
fn nesting_needs_no_more_stack_than_the_limit_on_the_depth_says() {
    // Each macro calls itself in another place, as deeply as the limit allows.
    let bodies = [
        "{{ m(n) }}",
        "{% if n %}{{ m(n) }}{% endif %}",
        "{% set x %}{{ m(n) }}{% endset %}",
        "{% filter upper %}{{ m(n) }}{% endfilter %}",
        "{% for x in [1] %}{{ m(n) }}{% endfor %}",
        "{% for x in [1] if m(n) %}{% endfor %}",
        "{% for x in [1] recursive %}{{ loop([m]) }}{% endfor %}",
        "{% call m(n) %}{{ caller() }}{% endcall %}",
        "{{ m(*[n], **{'k': m(n)}) }}",
        "{{ n|replace(m(n), '') }}{{ n is divisibleby(m(n)) }}",
        "{{ 'a'.replace(m(n), 'b') }}",
        "{{ {1: [(m(n),)]}[m(n):] if m(n) == 1 else namespace(a=m(n)) }}",
        "{{ [1]|map('replace', m(n))|list }}",
        "{% set a = namespace() %}{% set a.x = m(n) %}",
    ];
    let defaults = "{% macro m(n=m(n)) %}{% endmacro %}{{ m() }}".to_owned();
    let recursive = bodies.iter().map(|body| format!("{{% macro m(n) %}}{body}{{% endmacro %}}{{{{ m('1') }}}}"));
    let values = "{% set a = namespace(x=1) %}{% for i in range(240) %}{% set a.x = [{'a': a.x}] %}{% endfor %}{{ a.x|tojson }}{{ a.x }}";
    for source in recursive.chain([defaults, values.to_owned()]) {
        for levels in [20, MAX_DEPTH] {
            let work = || {
                let run = Run::new(RenderLimits {
                    steps: STEPS,
                    memory: MEMORY,
                    output: MEMORY,
                    depth: levels,
                    interrupt: None,
                    mark: None,
                });
                let template = Template::parse(&source).unwrap();
                template.render(&run, Vec::new(), 0).err()
            };
            let fault = std::thread::scope(|scope| {
                std::thread::Builder::new().stack_size(stack(levels)).spawn_scoped(scope, work).unwrap().join().unwrap()
            });
            assert!(fault.is_none_or(|fault| matches!(fault.kind, FaultKind::Depth | FaultKind::Limit)), "{source}");
        }
    }
}

#[test]
fn parsing_needs_no_more_stack_than_it_says() {
    for (open, close) in
        [("(", ")"), ("[", "]"), ("{1:", "}"), ("f(", ")"), ("1|f(", ")"), ("1 is f(", ")"), ("a[", "]"), ("-", "")]
    {
        let source = format!("{{{{ {}1{} }}}}", open.repeat(300), close.repeat(300));
        let parse = || Template::parse(&source).unwrap_err();
        let fault = std::thread::scope(|scope| {
            std::thread::Builder::new().stack_size(PARSE_STACK).spawn_scoped(scope, parse).unwrap().join().unwrap()
        });
        assert_eq!(fault.message, "is nested more than 200 levels", "{source}");
    }
}

#[test]
fn stacks_and_depths_are_inverse() {
    for levels in [0, 1, 30, MAX_DEPTH] {
        assert_eq!(depth(stack(levels)), levels);
    }
    assert_eq!((depth(0), depth(1 << 30)), (0, MAX_DEPTH));
}

/// Values nest as deeply as the steps allow. None exhausts the stack when it is dropped.
#[test]
fn deeply_nested_values_are_dropped() {
    for next in ["[n.x]", "{'a': n.x}", "namespace(x=n.x)", "[n.x].copy"] {
        check(
            &format!(
                "{{% set n = namespace(x=[]) %}}{{% for a in range(99999) %}}{{% set n.x = {next} %}}{{% endfor %}}a"
            ),
            "a",
        );
    }
    let loops = "{% set n = namespace(x=[]) %}{% for a in range(99999) %}{% for b in [n.x] %}{% set n.x = loop %}{% endfor %}{% endfor %}a";
    check(loops, "a");
}

/// A value that contains itself is freed at the end: its memory is given back to the meter.
#[test]
fn values_that_contain_themselves_are_freed() {
    let sources = [
        "{% set n = namespace(x=1) %}{% set n.x = n %}",
        "{% set a = [] %}{% set _ = a.append(a) %}",
        "{% set a = [] %}{% set _ = a.extend([[a], a]) %}",
        "{% set d = {} %}{% set _ = d.update(d=[d]) %}{% set _ = d.setdefault('e', d) %}",
        "{% set n = namespace(x=1) %}{% for a in [n] %}{% set n.x = loop %}{% endfor %}",
        "{% set n = namespace(x=1) %}{% macro m() %}{{ n }}{% endmacro %}{% set n.x = m %}",
        "{% set l = [] %}{% set _ = l.append(l.append) %}{{ 1 // 0 }}",
    ];
    on_stack(|| {
        for source in sources {
            let template = Template::parse(source).unwrap();
            let run = Run::new(RenderLimits {
                steps: STEPS,
                memory: MEMORY,
                output: MEMORY,
                depth: MAX_DEPTH,
                interrupt: None,
                mark: None,
            });
            let _ = template.render(&run, Vec::new(), 0);
            assert_eq!(run.memory(), 0, "{source}");
        }
    });
}

#[test]
fn the_interrupt_stops_a_rendering() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let interrupt: StopSignal = Arc::new(move || counted.fetch_add(1, Ordering::Relaxed) == 4);
    let (result, steps) = rendered("{% for a in range(99999) %}{% endfor %}", Some(interrupt));
    assert_eq!(result.unwrap_err().kind, FaultKind::Interrupted);
    assert_eq!(asked.load(Ordering::Relaxed), 5);
    assert!(steps < 100_000, "{steps}");
}

/// Gemma 4's template looks back over all earlier messages for each message: the steps of a pair of messages do not grow with their number.
#[test]
fn loops_over_all_earlier_items_take_steps_for_each_pair() {
    let steps = |n: usize| {
        let source = format!(
            "{{% set m = [{{'role': 'user'}}] * {n} %}}{{% for a in m %}}{{% set found = namespace(role=none) %}}\
            {{% for j in range(loop.index0 - 1, -1, -1) %}}{{% if not found.role and m[j]['role'] != 'tool' %}}\
            {{% set found.role = m[j]['role'] %}}{{% endif %}}{{% endfor %}}{{{{ 'x' if found.role else 'y' }}}}{{% endfor %}}"
        );
        let (result, steps) = rendered(&source, None);
        assert!(result.is_ok_and(|text| text.trim_start() == format!("y{}", "x".repeat(n - 1))));
        steps
    };
    let (few, many) = (steps(100), steps(400));
    assert!(few > 100 * 99 / 2 && many < 17 * few, "{few} and {many} steps");
}

#[test]
fn long_error_messages_are_cut() {
    for source in ["{{ raise_exception('a' * 1000000) }}", "{{ [1]|map('a' * 1000000)|list }}"] {
        assert!(fault(source).message.len() < 5000, "{source}");
    }
}

#[test]
fn searches_pass_over_the_mark() {
    let limits = RenderLimits {
        steps: STEPS,
        memory: MEMORY,
        output: MEMORY,
        depth: MAX_DEPTH,
        interrupt: None,
        mark: Some('~'),
    };
    for (expression, expected) in [
        ("'<b>' in x, 'b>c' in x, '<bc' in x", "(True, True, False)"),
        ("x == 'a<b>c<b>', x == 'a<~b>c<b~>', x == 'a<b>c<b'", "(True, True, False)"),
        ("x.split('<b>')", "['a', 'c', '']"),
        ("x.split('b', 1), x.rsplit('b', 1)", "(['a<~', '>c<b~>'], ['a<~b>c<', '>'])"),
        ("x.split('<', 1), x.rsplit('<b', 1)", "(['a', 'b>c<b~>'], ['a<~b>c', '>'])"),
        ("x.startswith('a<b'), x.endswith('<b>'), x.endswith('b')", "(True, True, False)"),
        ("x.removeprefix('a<'), x.removesuffix('<b>')", "('b>c<b~>', 'a<~b>c')"),
        ("x.replace('<b>', '-', 1), x.count('<b>'), x.replace('c', '')", "('a-c<b~>', 2, 'a<~b><b~>')"),
        ("x.find('<b>'), x[x.rfind('<b'):], x is startingwith 'a<b'", "(1, '<b~>', True)"),
        ("x.find('')", "0"),
    ] {
        let template = Template::parse(&format!("{{{{ {expression} }}}}")).unwrap();
        let run = Run::new(limits.clone());
        let x = run.text("a<~b>c<b~>").unwrap();
        let found = template.render(&run, vec![("x", x)], 0);
        assert_eq!(found.unwrap(), expected, "{expression}");
    }
}
