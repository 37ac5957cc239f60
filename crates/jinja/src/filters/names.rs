//! The names of filters, and the file that has each.

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
        "abs" | "attr" | "bool" | "d" | "default" | "float" | "int" | "pprint" | "round" | "safe" | "string"
        | "tojson" => FilterGroup::Value,
        "capitalize" | "center" | "e" | "escape" | "forceescape" | "format" | "indent" | "lines" | "lower"
        | "replace" | "split" | "striptags" | "title" | "trim" | "truncate" | "upper" | "urlencode" | "wordcount"
        | "wordwrap" => FilterGroup::Text,
        "batch" | "count" | "dictsort" | "first" | "groupby" | "items" | "join" | "last" | "length" | "list"
        | "map" | "max" | "min" | "reject" | "rejectattr" | "reverse" | "select" | "selectattr" | "slice" | "sort"
        | "sum" | "unique" | "zip" => FilterGroup::Sequence,
        _ => return None,
    })
}

/// Whether there is a filter of that name.
pub(crate) fn is_known(name: &str) -> bool {
    group(name).is_some()
}
