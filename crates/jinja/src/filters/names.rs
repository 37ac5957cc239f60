//! The names of filters, and the file that has each: those that chat templates use. Jinja2's filters that lay out pages or calculate
//! (`wordwrap`, `truncate`, `batch`, `groupby`, `escape`, `format`, `round`, `sum`, ...) are in no template that we know, and llama.cpp has none of
//! them.

/// The kind of values that a filter is for.
#[derive(Clone, Copy)]
pub(super) enum FilterGroup {
    Value,
    Text,
    Sequence,
}

/// The group of the filter of that name; `None`: there is none.
pub(super) fn group(name: &str) -> Option<FilterGroup> {
    Some(match name {
        "abs" | "d" | "default" | "float" | "int" | "safe" | "string" | "tojson" => FilterGroup::Value,
        "capitalize" | "indent" | "lower" | "lstrip" | "replace" | "rstrip" | "split" | "strip" | "title" | "trim"
        | "upper" => FilterGroup::Text,
        "count" | "dictsort" | "first" | "items" | "join" | "last" | "length" | "list" | "map" | "max" | "min"
        | "reject" | "rejectattr" | "reverse" | "select" | "selectattr" | "sort" | "unique" => FilterGroup::Sequence,
        _ => return None,
    })
}

/// Whether there is a filter of that name.
pub(crate) fn is_known(name: &str) -> bool {
    group(name).is_some()
}
