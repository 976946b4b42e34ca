//! The command `test`, also known as `[`, as in `grub-core/commands/test.c`: conditions are read from left to right,
//! and one that follows another without an operator is joined by `-a`.

use super::boot::GrubFiles;

/// Evaluates the arguments of `test`, without the closing `]`.
pub(super) fn test(arguments: &[String], files: &dyn GrubFiles) -> bool {
    let mut rest: Vec<&str> = arguments.iter().rev().map(String::as_str).collect();
    evaluate(&mut rest, files)
}

/// Evaluates the words, of which the next one is the last, up to a closing parenthesis.
fn evaluate(rest: &mut Vec<&str>, files: &dyn GrubFiles) -> bool {
    let (mut any, mut all, mut inverted) = (false, true, false);
    let join = |value: bool, inverted: &mut bool, all: &mut bool| {
        *all &= value != std::mem::take(inverted);
    };
    while let Some(word) = rest.pop() {
        let (second, third) = (peek(rest, 0), peek(rest, 1));
        if let (Some(operator), Some(right)) = (second, third)
            && let Some(value) = compare(word, operator, right)
        {
            rest.truncate(rest.len() - 2);
            join(value, &mut inverted, &mut all);
            continue;
        }
        if let Some(operand) = second
            && let Some(value) = unary(word, operand, files)
        {
            rest.pop();
            join(value, &mut inverted, &mut all);
            continue;
        }
        match word {
            ")" => break,
            "(" => {
                let value = evaluate(rest, files);
                join(value, &mut inverted, &mut all);
            }
            "!" => inverted = !inverted,
            "-a" => {}
            "-o" => {
                any |= all;
                all = true;
            }
            text => join(!text.is_empty(), &mut inverted, &mut all),
        }
    }
    any || all
}

fn peek<'w>(rest: &[&'w str], index: usize) -> Option<&'w str> {
    rest.get(rest.len().checked_sub(index + 1)?).copied()
}

fn unary(operator: &str, operand: &str, files: &dyn GrubFiles) -> Option<bool> {
    let size = || files.size(operand);
    Some(match operator {
        "-z" => operand.is_empty(),
        "-n" => !operand.is_empty(),
        "-d" => files.is_directory(operand),
        "-e" => files.is_directory(operand) || size().is_some(),
        "-f" => size().is_some(),
        "-s" => size().is_some_and(|size| size > 0),
        _ => return None,
    })
}

fn compare(left: &str, operator: &str, right: &str) -> Option<bool> {
    let number = |text: &str| text.trim().parse::<i64>().unwrap_or_default();
    let numbers = || number(left).cmp(&number(right));
    Some(match operator {
        "=" | "==" => left == right,
        "!=" => left != right,
        "<" => left < right,
        ">" => left > right,
        "<=" => left <= right,
        ">=" => left >= right,
        "-eq" => numbers().is_eq(),
        "-ne" => numbers().is_ne(),
        "-lt" => numbers().is_lt(),
        "-le" => numbers().is_le(),
        "-gt" => numbers().is_gt(),
        "-ge" => numbers().is_ge(),
        _ => return None,
    })
}
