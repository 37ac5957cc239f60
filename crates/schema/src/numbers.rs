//! Ranges of integers and of decimal numbers, and patterns for them.

use serde_json::Number;

use crate::pattern::DecimalStep;

/// The maximum absolute value of a bounded integer: any parser represents integers of 15 digits exactly.
const MAX_INTEGER: u64 = 999_999_999_999_999;
/// Different numbers with so many digits are different 64-bit floats.
const MAX_DIGITS: usize = 15;

/// Integers without bounds.
const ANY_INTEGER: &str = "-?(0|[1-9][0-9]{0,15})";
/// Numbers without bounds: every parser can represent an exponent of one or two digits.
const ANY_NUMBER: &str = r"-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?([eE][-+]?[0-9][0-9]?)?";

/// The decimal numbers from `least` to `most`, or the integers of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NumberRange {
    pub(crate) is_integer: bool,
    pub(crate) least: Option<NumberBound>,
    pub(crate) most: Option<NumberBound>,
}

/// A bound of decimal numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NumberBound {
    is_negative: bool,
    magnitude: Magnitude,
}

/// A bound of decimal numbers that are not negative.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Magnitude {
    whole: u64,
    /// The digits after the point, without zeros at the end.
    fraction: Vec<u8>,
    is_exclusive: bool,
}

impl NumberBound {
    /// Reads a bound. `None`: it has too many digits after the point. A bound with more than 15 digits before the point is replaced by the
    /// first number of 16 digits, exclusively.
    pub(crate) fn new(number: &Number, is_exclusive: bool) -> Option<NumberBound> {
        let text = number.to_string();
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().ok()?;
        let (is_negative, mantissa) = mantissa.strip_prefix('-').map_or((false, mantissa), |rest| (true, rest));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|byte| byte.wrapping_sub(b'0')).collect();
        let point = i32::try_from(whole.len()).ok()?.checked_add(exponent)?;
        let digit = |place: i32| usize::try_from(place).ok().and_then(|place| digits.get(place)).copied().unwrap_or(0);
        let first = digits.iter().position(|digit| *digit != 0).and_then(|first| i32::try_from(first).ok());
        let Some(first) = first else {
            return Some(NumberBound::whole(false, 0, is_exclusive));
        };
        if point - first > MAX_DIGITS as i32 {
            return Some(NumberBound::whole(is_negative, MAX_INTEGER + 1, true));
        }
        let last = i32::try_from(digits.len()).ok()?;
        if last - point > 2 * MAX_DIGITS as i32 {
            return None;
        }
        let whole = (0..point).fold(0_u64, |whole, place| whole * 10 + u64::from(digit(place)));
        let mut fraction: Vec<u8> = (point..last).map(digit).collect();
        fraction.truncate(fraction.iter().rposition(|digit| *digit != 0).map_or(0, |last| last + 1));
        (fraction.len() <= MAX_DIGITS)
            .then_some(NumberBound { is_negative, magnitude: Magnitude { whole, fraction, is_exclusive } })
    }

    /// The step of `multipleOf`. `None`: it is not positive, or has too many digits.
    pub(crate) fn decimal_step(number: &Number) -> Option<DecimalStep> {
        let NumberBound { is_negative, magnitude } = NumberBound::new(number, false)?;
        let mut digits = magnitude.fraction.iter();
        let units =
            digits.try_fold(magnitude.whole, |units, digit| units.checked_mul(10)?.checked_add(u64::from(*digit)));
        let n_digits = u32::try_from(magnitude.fraction.len()).ok()?;
        units
            .filter(|units| *units > 0 && !is_negative && !magnitude.is_exclusive)
            .map(|units| DecimalStep { units, n_digits })
    }

    fn whole(is_negative: bool, whole: u64, is_exclusive: bool) -> NumberBound {
        NumberBound { is_negative, magnitude: Magnitude { whole, fraction: Vec::new(), is_exclusive } }
    }

    /// The tighter one of two bounds.
    pub(crate) fn tighter(self, other: NumberBound, is_lower: bool) -> NumberBound {
        let key = |bound: &NumberBound| {
            let Magnitude { whole, fraction, is_exclusive } = &bound.magnitude;
            let sign = if bound.is_negative { -1_i64 } else { 1 };
            // Fractions of at most 15 digits as whole numbers.
            let digits = fraction.iter().chain(std::iter::repeat(&0)).take(MAX_DIGITS);
            let fraction = digits.fold(0_i64, |all, digit| all * 10 + i64::from(*digit));
            let exclusive = if is_lower { i64::from(*is_exclusive) } else { -i64::from(*is_exclusive) };
            (sign * i64::try_from(*whole).unwrap_or(i64::MAX), sign * fraction, exclusive)
        };
        if (key(&self) > key(&other)) == is_lower { self } else { other }
    }
}

impl NumberRange {
    /// The pattern of them. `None`: there are none.
    pub(crate) fn pattern(&self) -> Option<String> {
        if self.least.is_none() && self.most.is_none() {
            return Some(if self.is_integer { ANY_INTEGER } else { ANY_NUMBER }.to_owned());
        }
        // So many digits after the point that numbers beside a bound are not rounded to it.
        let bounds = [&self.least, &self.most].into_iter().flatten();
        let longest = bounds.map(|bound| bound.magnitude.whole.to_string().len()).max().unwrap_or(1);
        let digits = if self.is_integer { 0 } else { MAX_DIGITS.saturating_sub(longest).max(1) };
        let zero = Magnitude { whole: 0, fraction: Vec::new(), is_exclusive: false };
        let mut parts = Vec::new();
        let is_negative = |bound: &Option<NumberBound>| bound.as_ref().map(|bound| bound.is_negative);
        let magnitude = |bound: &Option<NumberBound>| bound.as_ref().map(|bound| bound.magnitude.clone());
        if is_negative(&self.most) != Some(true) {
            let from = magnitude(&self.least).filter(|_| is_negative(&self.least) != Some(true));
            parts.extend(magnitudes(&from.unwrap_or_else(|| zero.clone()), magnitude(&self.most).as_ref(), digits));
        }
        if is_negative(&self.least) != Some(false) {
            let most = magnitude(&self.most);
            // Minus zero is zero, which an exclusive bound at zero forbids. It is no integer here.
            let forbids_zero = self.is_integer || most == Some(Magnitude { is_exclusive: true, ..zero.clone() });
            let zero = Magnitude { is_exclusive: forbids_zero, ..zero };
            let from = most.filter(|_| is_negative(&self.most) == Some(true)).unwrap_or(zero);
            let body = magnitudes(&from, magnitude(&self.least).as_ref(), digits);
            parts.extend(body.map(|body| format!("-({body})")));
        }
        (!parts.is_empty()).then(|| parts.join("|"))
    }
}

/// The numbers from `least` to `most` with at most so many digits after the point, as alternatives.
fn magnitudes(least: &Magnitude, most: Option<&Magnitude>, digits: usize) -> Option<String> {
    if digits == 0 {
        let first = least.whole + u64::from(least.is_exclusive || !least.fraction.is_empty());
        let last = most.map_or(Some(MAX_INTEGER), |most| {
            most.whole.checked_sub(u64::from(most.is_exclusive && most.fraction.is_empty()))
        });
        return last.filter(|last| first <= *last).map(|last| integers(first, last).join("|"));
    }
    let last = most.map_or(MAX_INTEGER + 1, |most| most.whole);
    if least.whole > last.min(MAX_INTEGER) {
        return None;
    }
    let mut parts = Vec::new();
    let with_fraction = |whole: u64, least: Option<&Magnitude>, most: Option<&Magnitude>| {
        let fractions = fraction(least.map(Tight::new), most.map(Tight::new), 0, digits);
        match (fractions.may_be_empty, fractions.digits) {
            (true, Some(digits)) => Some(format!("{whole}(\\.({digits}))?")),
            (false, Some(digits)) => Some(format!("{whole}\\.({digits})")),
            (true, None) => Some(whole.to_string()),
            (false, None) => None,
        }
    };
    if most.is_some() && least.whole == last {
        parts.extend(with_fraction(least.whole, Some(least), most));
    } else {
        parts.extend(with_fraction(least.whole, Some(least), None));
        if least.whole + 1 < last {
            let between = integers(least.whole + 1, last - 1).join("|");
            parts.push(format!("({between})(\\.[0-9]{{1,{digits}}})?"));
        }
        parts.extend(most.and_then(|most| with_fraction(last, None, Some(most))));
    }
    (!parts.is_empty()).then(|| parts.join("|"))
}

/// A bound whose digits so far are those of the number.
#[derive(Clone, Copy)]
struct Tight<'a> {
    /// The digits that follow.
    rest: &'a [u8],
    is_exclusive: bool,
}

impl<'a> Tight<'a> {
    fn new(bound: &'a Magnitude) -> Tight<'a> {
        Tight { rest: &bound.fraction, is_exclusive: bound.is_exclusive }
    }

    fn after_digit(self) -> Tight<'a> {
        Tight { rest: self.rest.get(1..).unwrap_or(&[]), ..self }
    }

    fn digit(self) -> u8 {
        self.rest.first().copied().unwrap_or(0)
    }

    /// Whether the number equals the bound if no digits follow.
    fn is_reached(self) -> bool {
        self.rest.is_empty()
    }
}

/// Digits after the point.
struct Fractions {
    may_be_empty: bool,
    /// The pattern of one digit or more.
    digits: Option<String>,
}

/// The digits that may follow, at least `needed` and at most `left`, between the bounds that are still tight.
fn fraction(least: Option<Tight<'_>>, most: Option<Tight<'_>>, needed: usize, left: usize) -> Fractions {
    // With no more digits to compare, an inclusive lower bound holds for all that follow.
    let least = least.filter(|bound| !bound.is_reached() || bound.is_exclusive);
    let may_be_empty =
        needed == 0 && least.is_none() && most.is_none_or(|bound| !bound.is_reached() || !bound.is_exclusive);
    if left == 0 || most.is_some_and(|bound| bound.is_reached() && bound.is_exclusive) {
        return Fractions { may_be_empty, digits: None };
    }
    let rest = needed.saturating_sub(1);
    let (low, high) = (least.map_or(0, Tight::digit), most.map_or(9, Tight::digit));
    let mut parts = Vec::new();
    let mut add = |first: u8, last: u8, rest: &Fractions| {
        let digits = range(first, last);
        match (rest.may_be_empty, &rest.digits) {
            (true, Some(rest)) => parts.push(format!("{digits}({rest})?")),
            (false, Some(rest)) => parts.push(format!("{digits}({rest})")),
            (true, None) => parts.push(digits),
            (false, None) => {}
        }
    };
    let free = || {
        let digits = (left > 1).then(|| format!("[0-9]{{{},{}}}", needed.max(2) - 1, left - 1));
        Fractions { may_be_empty: needed < 2, digits }
    };
    let (mut first, mut last) = (i16::from(low), i16::from(high));
    match (least, most) {
        (None, None) => {}
        (Some(one), Some(other)) if low == high => {
            add(low, low, &fraction(Some(one.after_digit()), Some(other.after_digit()), rest, left - 1));
            first += 1;
        }
        (one, other) => {
            if low <= high {
                if let Some(one) = one {
                    let upper = other.filter(|_| low == high).map(Tight::after_digit);
                    add(low, low, &fraction(Some(one.after_digit()), upper, rest, left - 1));
                    first += 1;
                }
                if let Some(other) = other.filter(|_| first <= last) {
                    let lower = one.filter(|_| low == high).map(Tight::after_digit);
                    add(high, high, &fraction(lower, Some(other.after_digit()), rest, left - 1));
                    last -= 1;
                }
            }
        }
    }
    if let (Ok(first), Ok(last)) = (u8::try_from(first), u8::try_from(last))
        && first <= last
    {
        add(first, last, &free());
    }
    Fractions { may_be_empty, digits: (!parts.is_empty()).then(|| parts.join("|")) }
}

/// The integers from `least` to `most` without a sign, as alternatives.
fn integers(least: u64, most: u64) -> Vec<String> {
    let mut parts = Vec::new();
    // The lengths of which all numbers are meant are one alternative.
    let mut whole: Option<(usize, usize)> = None;
    let mut first = least;
    while first <= most {
        let n_digits = first.to_string().len();
        let next = u32::try_from(n_digits).ok().and_then(|n_digits| 10_u64.checked_pow(n_digits)).unwrap_or(u64::MAX);
        let last = most.min(next - 1);
        if first > 0 && first == next / 10 && last == next - 1 {
            whole = Some((whole.map_or(n_digits, |(from, _)| from), n_digits));
        } else {
            // Numbers of one length are in the order of their digits, as fractions are.
            let digits = |number: u64| -> Vec<u8> {
                number.to_string().trim_end_matches('0').bytes().map(|byte| byte - b'0').collect()
            };
            let (low, end) = (digits(first), digits(last + 1));
            let least = Tight { rest: &low, is_exclusive: false };
            let most = Tight { rest: &end, is_exclusive: true };
            let most = Some(most).filter(|_| last + 1 < next);
            parts.extend(fraction(Some(least), most, n_digits, n_digits).digits);
        }
        first = last + 1;
    }
    parts.extend(whole.map(|(from, to)| match (from - 1, to - 1) {
        (0, 0) => "[1-9]".to_owned(),
        (few, many) if few == many => format!("[1-9][0-9]{{{few}}}"),
        (few, many) => format!("[1-9][0-9]{{{few},{many}}}"),
    }));
    parts
}

/// A digit from `first` to `last`.
fn range(first: u8, last: u8) -> String {
    if first == last { first.to_string() } else { format!("[{first}-{last}]") }
}
