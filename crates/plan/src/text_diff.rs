//! Unified diffs of small texts.

/// Lines shown around a change.
const CONTEXT_LINES: usize = 3;

/// The maximum number of edits to search for. Texts with more edits have little in common, the
/// search takes quadratic time, and a complete replacement is as informative.
const MAX_EDITS: usize = 1_000;

/// One line of the diff.
#[derive(Clone, Copy, Debug, PartialEq)]
enum DiffLine<'a> {
    Same(&'a str),
    Gone(&'a str),
    New(&'a str),
}

/// The difference between two texts in the format of `diff -u`; empty for equal texts.
pub(super) fn unified(path: &str, old: &str, new: &str) -> String {
    let (one, two): (Vec<&str>, Vec<&str>) = (
        old.split_inclusive('\n').collect(),
        new.split_inclusive('\n').collect(),
    );
    let lines = compare(&one, &two);
    let mut out = String::new();
    for (start, end) in hunks(&lines) {
        if out.is_empty() {
            out.push_str(&format!("--- {path}\n+++ {path}\n"));
        }
        push_hunk(&mut out, &lines, start, end);
    }
    out
}

/// Ranges of lines that belong together: changes with their context.
fn hunks(lines: &[DiffLine<'_>]) -> Vec<(usize, usize)> {
    let mut hunks: Vec<(usize, usize)> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if matches!(line, DiffLine::Same(_)) {
            continue;
        }
        let (start, end) = (
            at.saturating_sub(CONTEXT_LINES),
            (at + CONTEXT_LINES + 1).min(lines.len()),
        );
        match hunks.last_mut() {
            Some(last) if start <= last.1 => last.1 = end,
            _ => hunks.push((start, end)),
        }
    }
    hunks
}

fn push_hunk(out: &mut String, lines: &[DiffLine<'_>], start: usize, end: usize) {
    let old = |lines: &[DiffLine<'_>]| {
        lines
            .iter()
            .filter(|line| !matches!(line, DiffLine::New(_)))
            .count()
    };
    let new = |lines: &[DiffLine<'_>]| {
        lines
            .iter()
            .filter(|line| !matches!(line, DiffLine::Gone(_)))
            .count()
    };
    let (before, hunk) = (&lines[..start], &lines[start..end]);
    let range = |before: usize, length: usize| match length {
        0 => format!("{before},0"),
        1 => format!("{}", before + 1),
        _ => format!("{},{length}", before + 1),
    };
    out.push_str(&format!(
        "@@ -{} +{} @@\n",
        range(old(before), old(hunk)),
        range(new(before), new(hunk))
    ));
    for line in hunk {
        let (sign, text) = match line {
            DiffLine::Same(text) => (' ', text),
            DiffLine::Gone(text) => ('-', text),
            DiffLine::New(text) => ('+', text),
        };
        out.push(sign);
        out.push_str(text);
        if !text.ends_with('\n') {
            out.push_str("\n\\ No newline at end of file\n");
        }
    }
}

fn compare<'a>(one: &[&'a str], two: &[&'a str]) -> Vec<DiffLine<'a>> {
    let head = one.iter().zip(two).take_while(|(a, b)| a == b).count();
    let (rest_one, rest_two) = (&one[head..], &two[head..]);
    let tail = rest_one
        .iter()
        .rev()
        .zip(rest_two.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let (middle_one, middle_two) = (
        &rest_one[..rest_one.len() - tail],
        &rest_two[..rest_two.len() - tail],
    );
    let mut lines: Vec<DiffLine<'a>> = one[..head].iter().copied().map(DiffLine::Same).collect();
    lines.extend(shortest(middle_one, middle_two));
    lines.extend(
        rest_one[rest_one.len() - tail..]
            .iter()
            .copied()
            .map(DiffLine::Same),
    );
    lines
}

/// Myers' greedy search for the shortest edit script (An O(ND) Difference Algorithm, 1986).
fn shortest<'a>(one: &[&'a str], two: &[&'a str]) -> Vec<DiffLine<'a>> {
    let mut trace: Vec<Vec<usize>> = Vec::new();
    // `reach[k + edits]`: how far the best path on diagonal k = x - y comes in `one`.
    let mut reach = vec![0_usize];
    for edits in 0..=MAX_EDITS {
        let mut next = vec![0; 2 * edits + 1];
        for step in 0..=edits {
            let slot = 2 * step;
            let start = if edits == 0 {
                0
            } else {
                furthest(&reach, slot)
            };
            let end = slide(one, two, start, slot, edits);
            next[slot] = end;
            if end >= one.len() && (end + edits) >= slot && end + edits - slot >= two.len() {
                trace.push(std::mem::take(&mut next));
                return script(one, two, &trace);
            }
        }
        trace.push(next.clone());
        reach = next;
    }
    let gone = one.iter().copied().map(DiffLine::Gone);
    gone.chain(two.iter().copied().map(DiffLine::New)).collect()
}

/// Where diagonal `slot` (counted from the lowest of this round) starts, from the round before.
fn furthest(reach: &[usize], slot: usize) -> usize {
    let inserted = reach.get(slot).copied();
    let removed = slot
        .checked_sub(2)
        .and_then(|slot| reach.get(slot))
        .map(|x| x + 1);
    inserted.max(removed).unwrap_or_default()
}

/// Follows equal lines from `x` on the diagonal `slot - edits`.
fn slide(one: &[&str], two: &[&str], mut x: usize, slot: usize, edits: usize) -> usize {
    while let Some(y) = (x + edits).checked_sub(slot) {
        match (one.get(x), two.get(y)) {
            (Some(a), Some(b)) if a == b => x += 1,
            _ => break,
        }
    }
    x
}

/// Walks the trace back from the end.
fn script<'a>(one: &[&'a str], two: &[&'a str], trace: &[Vec<usize>]) -> Vec<DiffLine<'a>> {
    let mut lines = Vec::new();
    let (mut x, mut y) = (one.len(), two.len());
    for edits in (1..trace.len()).rev() {
        let slot = (x + edits) - y;
        let before = &trace[edits - 1];
        let inserted = before.get(slot).copied();
        let removed = slot
            .checked_sub(2)
            .and_then(|slot| before.get(slot))
            .map(|x| x + 1);
        let start = inserted.max(removed).unwrap_or_default();
        while x > start {
            x -= 1;
            y -= 1;
            lines.push(DiffLine::Same(one[x]));
        }
        // If both orders are equally short, print the removal first, as readers expect.
        if inserted == Some(start) {
            y -= 1;
            lines.push(DiffLine::New(two[y]));
        } else {
            x -= 1;
            lines.push(DiffLine::Gone(one[x]));
        }
    }
    lines.extend(one[..x].iter().rev().copied().map(DiffLine::Same));
    lines.reverse();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_line_is_shown_with_its_surroundings() {
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let new = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n";
        assert_eq!(
            unified("/x", old, new),
            "--- /x\n+++ /x\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"
        );
        assert_eq!(unified("/x", old, old), "");
        assert_eq!(
            unified("/x", "", "a"),
            "--- /x\n+++ /x\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n"
        );
    }

    #[test]
    fn the_script_turns_one_text_into_the_other() {
        let mut seed = 7_u32;
        let mut any = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % below
        };
        for _ in 0..5_000 {
            let text = |any: &mut dyn FnMut(u32) -> u32| -> Vec<&str> {
                (0..any(9))
                    .map(|_| ["a\n", "b\n", "c\n"][any(3) as usize])
                    .collect()
            };
            let (one, two) = (text(&mut any), text(&mut any));
            let lines = compare(&one, &two);
            let side = |new: bool| -> Vec<&str> {
                lines
                    .iter()
                    .filter_map(|line| match *line {
                        DiffLine::Same(text) => Some(text),
                        DiffLine::Gone(text) => (!new).then_some(text),
                        DiffLine::New(text) => new.then_some(text),
                    })
                    .collect()
            };
            assert_eq!((side(false), side(true)), (one, two));
        }
    }
}
