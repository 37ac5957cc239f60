//! Dates.

/// C's `strftime` of a Unix time in UTC. Unknown conversions are left unchanged.
pub fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, second) = (seconds / 86400, seconds % 86400);
    // Years are counted from March, so that a leap day is the last day of a year.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let (from_march, day) = ((5 * of_year + 2) / 153, of_year - (153 * ((5 * of_year + 2) / 153) + 2) / 5 + 1);
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let month_name = MONTHS.get(month as usize - 1).copied().unwrap_or_default();
    let day_name = DAYS.get((days % 7) as usize).copied().unwrap_or_default();
    let short = |name: &str| name.chars().take(3).collect::<String>();
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut conversion = rest.next();
        let padded = conversion != Some('-');
        if !padded {
            conversion = rest.next();
        }
        let number = |value: u64| if padded { format!("{value:02}") } else { value.to_string() };
        out += &match conversion {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100),
            Some('m') => number(month),
            Some('d') => number(day),
            Some('e') => format!("{day:2}"),
            Some('H') => number(hour),
            Some('I') => number((hour + 11) % 12 + 1),
            Some('M') => number(minute),
            Some('S') => number(second % 60),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => short(month_name),
            Some('A') => day_name.to_owned(),
            Some('a') => short(day_name),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => other.map_or("%".to_owned(), |c| format!("%{c}")),
        };
    }
    out
}
