use super::*;

/// The formats of all families.
pub(crate) fn all() -> Vec<(&'static str, ChatFormat)> {
    let thinks = || Some(Block::new("<think>", "</think>"));
    vec![
        ("gpt-oss", harmony()),
        ("Muse", recipients()),
        ("Kimi K3", open_close()),
        ("Kimi K2", sections(thinks())),
        ("functionary", arrows()),
        ("LFM2", python_list(thinks())),
        ("Gemma", gemma()),
        ("Solar", named_sections()),
        ("MiniCPM", cdata()),
        ("MiniMax M3", element_tags()),
    ]
}
