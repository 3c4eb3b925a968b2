//! Floats as Python prints and rounds them.

/// CPython's `repr` of a finite double: the shortest digits that read back as `x`, with an exponent if the decimal
/// exponent is below -4 or at least 16, with `.0` if nothing would show that it is a float.
///
/// The digits are ryu's, which on a tie between two shortest candidates takes the even one, as CPython does; std's
/// formatting does not. Infinities give `Infinity` and `-Infinity` and NaN gives `NaN`, as Python's `json` writes them.
pub(crate) fn repr(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    let sign = if x.is_sign_negative() { "-" } else { "" };
    if x.is_infinite() {
        return format!("{sign}Infinity");
    }
    if x == 0.0 {
        return format!("{sign}0.0");
    }
    let (digits, exponent) = shortest(x.abs());
    format!("{sign}{}", lay_out(&digits, exponent))
}

/// Python's `round(x, 4)`: the double nearest to the decimal of four places nearest to `x`'s exact value, ties to the
/// even decimal. std's formatting with a precision is exact and goes to even on ties, so that its text is that decimal.
pub(crate) fn round4(x: f64) -> f64 {
    format!("{x:.4}").parse().expect("a formatted float parses")
}

/// The shortest digits of a positive finite double, no zero at either end, and the decimal exponent of the first.
fn shortest(x: f64) -> (String, i32) {
    let mut buffer = ryu::Buffer::new();
    let text = buffer.format_finite(x);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let leading = all.bytes().take_while(|&digit| digit == b'0').count();
    let exponent: i32 = exponent.parse().expect("ryu writes an integer exponent");
    let places =
        |count: usize| i32::try_from(count).expect("a double has at most 17 shortest digits");
    let first = exponent + places(whole.len()) - 1 - places(leading);
    (all.trim_matches('0').to_owned(), first)
}

/// Writes digits whose first has the decimal exponent `exponent`.
fn lay_out(digits: &str, exponent: i32) -> String {
    let (first, rest) = digits.split_at(1);
    if !(-4..16).contains(&exponent) {
        let point = if rest.is_empty() { "" } else { "." };
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{first}{point}{rest}e{sign}{:02}", exponent.abs());
    }
    let Ok(whole) = usize::try_from(exponent + 1) else {
        return format!("0.{}{digits}", zeros(-exponent - 1));
    };
    match digits.split_at_checked(whole) {
        Some(("", fraction)) => format!("0.{fraction}"),
        Some((whole, "")) => format!("{whole}.0"),
        Some((whole, fraction)) => format!("{whole}.{fraction}"),
        None => format!("{digits:0<whole$}.0"),
    }
}

fn zeros(count: i32) -> String {
    "0".repeat(usize::try_from(count).expect("the exponent is negative here"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spellings printed by CPython 3.11.
    #[test]
    fn repr_is_cpythons() {
        let cases: &[(f64, &str)] = &[
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.95, "0.95"),
            (0.1, "0.1"),
            (0.01, "0.01"),
            (0.001, "0.001"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (10.0, "10.0"),
            (123456.75, "123456.75"),
            (1e15, "1000000000000000.0"),
            (9007199254740993.0, "9007199254740992.0"),
            (1e16, "1e+16"),
            (1e22, "1e+22"),
            (12345678901234567.0, "1.2345678901234568e+16"),
            (1e100, "1e+100"),
            (5e-324, "5e-324"),
            (2.2250738585072014e-308, "2.2250738585072014e-308"),
            (f64::MAX, "1.7976931348623157e+308"),
            (-1.25, "-1.25"),
            (159.92495727539062, "159.92495727539062"), // a tie between ...062 and ...063
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::NAN, "NaN"),
        ];
        for (x, wanted) in cases {
            assert_eq!(repr(*x), *wanted);
        }
    }

    /// Roundings printed by CPython 3.11.
    #[test]
    fn round4_is_cpythons() {
        let cases: &[(f64, &str)] = &[
            (0.03125, "0.0312"),
            (0.09375, "0.0938"),
            (0.15625, "0.1562"),
            (0.21875, "0.2188"),
            (0.65625, "0.6562"),
            (0.00005, "0.0001"),
            (0.00015, "0.0001"),
            (0.12345, "0.1235"),
            (0.99995, "1.0"),
            (0.0, "0.0"),
            (f64::from(0.1_f32), "0.1"),
            (f64::from(1.0_f32 / 3.0), "0.3333"),
            (f64::from(1.0_f32 / 6.0), "0.1667"),
        ];
        for (x, wanted) in cases {
            assert_eq!(repr(round4(*x)), *wanted, "{x}");
        }
    }

    /// Doubles of many sizes, exact ties among them, rounded by CPython.
    #[test]
    fn round4_is_cpythons_on_the_golden_doubles() {
        for pair in descant_testkit::fixtures::jsonl("golden/python/round.jsonl.gz") {
            let bits = u64::from_str_radix(pair[0].as_str().unwrap(), 16).unwrap();
            let x = f64::from_bits(bits);
            assert_eq!(repr(round4(x)), pair[1].as_str().unwrap(), "{x:e}");
        }
    }
}
