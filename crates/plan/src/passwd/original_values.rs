//! Remembers the original values of entries, fields and memberships that machinist changes.

use std::collections::BTreeSet;

use super::{Database, DatabaseEntries, Edit, EditState, field::MEMBERS_FIELD};

/// Merges an edit into the list of original values: each place keeps its oldest value before and
/// its newest value after; an edit whose two values are equal is dropped, and one of a part of an entry that machinist
/// created changes the line of that entry.
pub fn remember(kept: &mut Vec<Edit>, edit: &Edit) {
    let of_one_we_made = |one: &Edit| {
        matches!(one, Edit::Line { database, name, before: None, .. }
            if *database == edit.database() && name == edit.name())
    };
    let part = !matches!(edit, Edit::Line { .. });
    if part && let Some(made) = kept.iter_mut().find(|one| of_one_we_made(one)) {
        return made.with_part(edit);
    }
    let place = edit.place();
    if let Some(at) = kept.iter().position(|one| one.place() == place)
        && let Some(parts) = parts_of_restored(&kept[at], edit)
    {
        kept.remove(at);
        return kept.extend(parts);
    }
    match kept.iter_mut().find(|one| one.place() == place) {
        Some(one) => one.ends_as(edit),
        None => kept.push(as_found(kept, edit)),
    }
    let parts = |one: &Edit| {
        let same = one.database() == edit.database() && one.name() == edit.name();
        same && !matches!(one, Edit::Line { .. })
    };
    kept.retain(|one| !one.changes_nothing() && (part || !parts(one)));
}

/// The parts that differ from the original entry, if `edit` restores the entry that `kept` removed; they are set in the
/// restored line.
fn parts_of_restored(kept: &Edit, edit: &Edit) -> Option<Vec<Edit>> {
    let (
        Edit::Line {
            database,
            name,
            before: Some(before),
            after: None,
            ..
        },
        Edit::Line {
            before: None,
            after: Some(after),
            ..
        },
    ) = (kept, edit)
    else {
        return None;
    };
    let (before, after) = [before, after].map(|line| line.split(':')).into();
    let (before, after): (Vec<&str>, Vec<&str>) = (before.collect(), after.collect());
    if database.by_line() || before.len() != after.len() {
        return None;
    }
    let mut parts = Vec::new();
    for (index, (before, after)) in before.into_iter().zip(after).enumerate() {
        let is_members =
            matches!(database, Database::Group | Database::Gshadow) && index == MEMBERS_FIELD;
        if is_members {
            let (before, after) = (members_of(before), members_of(after));
            let differ = before.symmetric_difference(&after);
            parts.extend(differ.map(|user| Edit::Member {
                database: *database,
                name: name.clone(),
                user: (*user).to_owned(),
                before: before.contains(user),
                after: after.contains(user),
                follows: None,
            }));
        } else if before != after {
            parts.push(Edit::Field {
                database: *database,
                name: name.clone(),
                index,
                before: before.to_owned(),
                after: after.to_owned(),
            });
        }
    }
    Some(parts)
}

fn members_of(field: &str) -> BTreeSet<&str> {
    field.split(',').filter(|user| !user.is_empty()).collect()
}

impl Edit {
    /// Applies the edit of a part to the line of an entry that was created.
    fn with_part(&mut self, part: &Edit) {
        if let Self::Line {
            name,
            after: Some(line),
            ..
        } = self
        {
            let mut entry = DatabaseEntries::of_line(line);
            part.apply(&mut entry);
            if let Some(found) = entry.line(name) {
                *line = found.to_owned();
            }
        }
    }
}

/// The removal of an entry, with the line as it was before machinist changed parts of it.
fn as_found(kept: &[Edit], edit: &Edit) -> Edit {
    let mut edit = edit.clone();
    if let Edit::Line {
        database,
        name,
        before: Some(line),
        after: None,
        ..
    } = &mut edit
    {
        let mut entry = DatabaseEntries::of_line(line);
        for part in kept.iter().rev().map(Edit::reversed) {
            let own = part.database() == *database && part.name() == name;
            if own && part.edit_state(&entry) == EditState::Before {
                part.apply(&mut entry);
            }
        }
        if let Some(found) = entry.line(name) {
            *line = found.to_owned();
        }
    }
    edit
}

impl Edit {
    fn ends_as(&mut self, later: &Self) {
        match (self, later) {
            (Self::Line { after, .. }, Self::Line { after: last, .. }) => after.clone_from(last),
            (Self::Field { after, .. }, Self::Field { after: last, .. }) => after.clone_from(last),
            (Self::Member { after, .. }, Self::Member { after: last, .. }) => *after = *last,
            _ => {}
        }
    }

    fn changes_nothing(&self) -> bool {
        match self {
            Self::Line { before, after, .. } => before == after,
            Self::Field { before, after, .. } => before == after,
            Self::Member { before, after, .. } => before == after,
        }
    }
}
