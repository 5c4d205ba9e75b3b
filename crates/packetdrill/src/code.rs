//! Code blocks: assertions on what TCP_INFO has of a connection.
//!
//! packetdrill gives them to Python. Of that language there are `assert`, numbers, names, `or`, `and`, `not`,
//! comparisons, `|`, `&`, `+`, `-`, `*` and parentheses.

use crate::Cause;
use crate::system::{OPTIONS, STATES};

/// The assertions of a block, each as it is in the script.
pub(crate) fn assertions(block: &str) -> Result<Vec<String>, Cause> {
    let statements = block.split(['\n', ';']).map(str::trim).filter(|line| !line.is_empty());
    let assertion = |statement: &str| {
        let condition = statement.strip_prefix("assert").filter(|rest| rest.starts_with([' ', '(']));
        condition.map(|condition| condition.trim().to_string()).ok_or_else(|| unsupported(statement))
    };
    let all = statements.map(assertion).collect::<Result<Vec<_>, _>>()?;
    // What cannot be read is found before the script runs.
    all.iter().try_for_each(|condition| value(condition, &mut |_| Ok(0)).map(drop))?;
    Ok(all)
}

/// Checks a condition. `field` returns the value of a field of TCP_INFO.
pub(crate) fn check(condition: &str, field: &mut dyn FnMut(&str) -> Result<i64, Cause>) -> Result<(), Cause> {
    let mut seen = Vec::new();
    let holds = value(condition, &mut |name| {
        let value = field(name)?;
        seen.push(format!("{name} {value}"));
        Ok(value)
    })?;
    if holds != 0 {
        return Ok(());
    }
    Err(Cause::Differs { expected: condition.to_string(), seen: seen.join(", ") })
}

fn unsupported(text: &str) -> Cause {
    Cause::Unsupported(format!("%{{ {text} }}%"))
}

fn value(condition: &str, field: &mut dyn FnMut(&str) -> Result<i64, Cause>) -> Result<i64, Cause> {
    let mut reader = Reader { condition, rest: condition, field };
    let value = reader.level(0)?;
    // Behind a comma is what Python prints.
    match reader.rest.trim_start() {
        rest if rest.is_empty() || rest.starts_with(',') => Ok(value),
        _ => Err(unsupported(condition)),
    }
}

/// Operators, from those that bind least on; of one level the longer ones first.
const LEVELS: [&[&str]; 6] =
    [&["or"], &["and"], &["==", "!=", "<=", ">=", "<", ">"], &["|", "&"], &["+", "-"], &["*"]];

struct Reader<'a> {
    condition: &'a str,
    rest: &'a str,
    field: &'a mut dyn FnMut(&str) -> Result<i64, Cause>,
}

impl Reader<'_> {
    fn level(&mut self, level: usize) -> Result<i64, Cause> {
        let Some(operators) = LEVELS.get(level) else { return self.operand() };
        let mut left = self.level(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| self.takes(operator)) {
            let right = self.level(level + 1)?;
            left = match *operator {
                "or" => i64::from(left != 0 || right != 0),
                "and" => i64::from(left != 0 && right != 0),
                "==" => i64::from(left == right),
                "!=" => i64::from(left != right),
                "<=" => i64::from(left <= right),
                ">=" => i64::from(left >= right),
                "<" => i64::from(left < right),
                ">" => i64::from(left > right),
                "|" => left | right,
                "&" => left & right,
                "+" => left.wrapping_add(right),
                "-" => left.wrapping_sub(right),
                _ => left.wrapping_mul(right),
            };
        }
        Ok(left)
    }

    fn operand(&mut self) -> Result<i64, Cause> {
        if self.takes("not") {
            return Ok(i64::from(self.level(2)? == 0));
        }
        if self.takes("-") {
            return Ok(self.operand()?.wrapping_neg());
        }
        if self.takes("(") {
            let value = self.level(0)?;
            return if self.takes(")") { Ok(value) } else { Err(unsupported(self.condition)) };
        }
        let rest = self.rest.trim_start();
        let end = rest.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        self.rest = rest;
        if let Ok(number) = word.parse() {
            return Ok(number);
        }
        if word.starts_with("tcpi_") {
            return (self.field)(word);
        }
        let names = STATES.iter().chain(&OPTIONS);
        let named = word.strip_prefix("TCPI_").or(word.strip_prefix("TCP_"));
        let known = named.and_then(|named| names.into_iter().find(|(name, _)| *name == named));
        known.map(|&(_, value)| value).ok_or_else(|| unsupported(self.condition))
    }

    /// Whether this comes next; then it is taken.
    fn takes(&mut self, token: &str) -> bool {
        let Some(rest) = self.rest.trim_start().strip_prefix(token) else { return false };
        let goes_on = |c: char| c == '_' || c.is_ascii_alphanumeric();
        if token.ends_with(goes_on) && rest.starts_with(goes_on) {
            return false;
        }
        self.rest = rest;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_python() {
        let mut field = |name: &str| match name {
            "tcpi_snd_cwnd" => Ok(10),
            "tcpi_state" => Ok(1),
            _ => Err(unsupported(name)),
        };
        for condition in [
            "tcpi_snd_cwnd == 10, tcpi_snd_cwnd",
            "(tcpi_snd_cwnd >= 10 and not tcpi_snd_cwnd > 10)",
            "tcpi_state == TCPI_ESTABLISHED",
            "tcpi_snd_cwnd == 2 + 2 * 4 or tcpi_unknown_is_not_reached == 1 and 0",
            "tcpi_snd_cwnd & 2 | 1 == 3",
            "-1 < tcpi_snd_cwnd - 10 + 1",
        ] {
            let outcome = check(condition, &mut field);
            match condition.contains("unknown") {
                // Both sides are evaluated, unlike Python's.
                true => assert!(matches!(outcome, Err(Cause::Unsupported(_))), "{condition}"),
                false => assert_eq!(outcome, Ok(()), "{condition}"),
            }
        }
        let error = check("tcpi_snd_cwnd != 10", &mut field).expect_err("it is 10");
        assert_eq!(error.to_string(), "expected tcpi_snd_cwnd != 10, seen tcpi_snd_cwnd 10");
        for block in
            ["print(tcpi_rto)", "assert", "assert tcpi_rto ==", "assert (1", "assert 1 2", "assert UNKNOWN"]
        {
            assert!(matches!(assertions(block), Err(Cause::Unsupported(_))), "{block}");
        }
        assert_eq!(assertions("\n assert 1\n assert 2 == 2;assert(3)\n").map(|all| all.len()), Ok(3));
    }
}
