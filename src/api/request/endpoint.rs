//! The groups of functions that requests come through.

/// The function group of a request. It decides the default of speculation, and whether the old server's leniency applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `get_completion`, `async_completion_init`: no speculation unless the request enables it.
    Completion,
    /// `speculative_*`: speculation unless the request disables it.
    Speculative,
    /// `foredraft_*`: speculation unless the request disables it. Values that the old server clamped or ignored are errors.
    Foredraft,
}

impl Endpoint {
    /// Whether the group has old names, which accept what the old server accepted.
    pub(in crate::api) fn is_old(self) -> bool {
        self != Endpoint::Foredraft
    }

    /// The index of a group of old names among these. Only old names can mean the newest request; `foredraft_*` functions name a request
    /// by its id.
    pub(in crate::api) fn old_index(self) -> Option<usize> {
        match self {
            Endpoint::Completion => Some(0),
            Endpoint::Speculative => Some(1),
            Endpoint::Foredraft => None,
        }
    }

    /// Whether a cancel of all requests, through this group, ends a request that came through `group`. Through `foredraft_cancel` it ends every
    /// request. By an old name it ends those of its group, but none whose caller waits for the final response: the old server's cancel did not.
    pub(in crate::api) fn cancels(self, group: Endpoint, is_awaited: bool) -> bool {
        self == Endpoint::Foredraft || (self == group && !is_awaited)
    }

    /// The name of the group's function that waits for the final response.
    pub(in crate::api) fn waiting_function(self) -> &'static str {
        match self {
            Endpoint::Completion => "get_completion",
            Endpoint::Speculative => "speculative_completion",
            Endpoint::Foredraft => "foredraft_complete",
        }
    }
}
