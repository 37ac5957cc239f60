//! Native decision models, by llama.cpp's metadata `ARCHITECTURE.decision.type`.

foredraft_base::words! {
    /// A type of decision models, which are asked by a prompt of the file's own template. After it, the next token is the label of an option; but
    /// for `Laya`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DecisionModel {
        /// A letter for each option, in the order of the options, which the template writes itself. `true` comes before `false`.
        OpenJev => "openjev",
        /// One or two capital letters, which the template gets. The options of a choice are asked in both orders, and a statement is rated.
        Lev => "lev",
        /// Labels as for `Lev`. The template gets all questions of the request.
        Nimble => "nimble",
        /// An encoder, which has a score for each mask token of its prompt, one before each option.
        Laya => "laya",
    }
}

/// The number of ratings of a statement, from certainly not to certainly.
const RATINGS: usize = 9;
/// The most labels that the template gets, and the most options of an encoder's question.
pub const MAX_LABELS: usize = 255;

impl DecisionModel {
    /// Whether an encoder scores the options, so that there is nothing to poll.
    pub fn is_encoder(self) -> bool {
        self == DecisionModel::Laya
    }

    /// Whether the type of a model's file is one that [`DecisionModel::is_encoder`].
    pub fn is_encoder_named(name: Option<&str>) -> bool {
        name.and_then(DecisionModel::named).is_some_and(DecisionModel::is_encoder)
    }

    /// The first labels that are one token each, with these, which `token` finds.
    pub fn labels<T>(self, token: impl Fn(&str) -> Option<T>) -> Vec<(String, T)> {
        let found = |label: String| token(&label).map(|token| (label, token));
        let capitals = || 'A'..='Z';
        if self == DecisionModel::OpenJev {
            return capitals().chain('a'..='z').map(String::from).map_while(found).collect();
        }
        let pairs = capitals().flat_map(|first| capitals().map(move |second| String::from_iter([first, second])));
        capitals().map(String::from).chain(pairs).filter_map(found).take(MAX_LABELS).collect()
    }

    /// Whether the template gets the labels.
    pub fn shows_labels(self) -> bool {
        matches!(self, DecisionModel::Lev | DecisionModel::Nimble)
    }

    /// Whether `true` is the first option of a statement.
    pub(super) fn is_true_first(self) -> bool {
        self == DecisionModel::OpenJev
    }

    /// Whether the options of a choice are asked in both orders.
    pub(super) fn asks_both_orders(self) -> bool {
        self == DecisionModel::Lev
    }

    /// The number of labels that a statement is answered with.
    pub(super) fn n_ratings(self) -> usize {
        if self == DecisionModel::Lev { RATINGS } else { 2 }
    }

    /// The numbers of options up to which the metadata has temperatures of their own, and the ends of their keys.
    pub fn temperature_buckets(model: Option<DecisionModel>) -> &'static [(usize, &'static str)] {
        match model {
            Some(DecisionModel::Lev) => &[(8, ".small"), (26, ".mid"), (usize::MAX, ".large")],
            _ => &[(2, ".2"), (5, ".3_5"), (10, ".6_10"), (usize::MAX, ".11")],
        }
    }
}
