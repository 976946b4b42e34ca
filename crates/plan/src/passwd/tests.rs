use super::*;

/// Lines other than entries that real files contain.
const ODD: &[u8] =
    b"root:x:0:0:root:/root:/bin/sh\n# a comment: with colons\n\nbroken line\nshort:x:5\n\
      caf\xe9:x:7:7:\xe9::\nbob:x:1000:1000::/home/bob:/bin/sh\n+@netgroup::::::\n+::::::\n";

fn made(name: &str) -> Edit {
    Edit::made(
        Database::Passwd,
        name,
        format!("{name}:x:1001:1001::/home/{name}:/bin/sh"),
    )
}

fn field(name: &str, index: usize, before: &str, after: &str) -> Edit {
    Edit::Field {
        database: Database::Passwd,
        name: name.into(),
        index,
        before: before.into(),
        after: after.into(),
    }
}

fn member(name: &str, user: &str, after: bool) -> Edit {
    Edit::Member {
        database: Database::Group,
        name: name.into(),
        user: user.into(),
        before: !after,
        after,
        follows: None,
    }
}

fn edited(text: &[u8], edit: &Edit) -> Vec<u8> {
    let mut entries = DatabaseEntries::read(text);
    assert_eq!(edit.edit_state(&entries), EditState::Before, "{edit:?}");
    edit.apply(&mut entries);
    assert_eq!(edit.edit_state(&entries), EditState::After, "{edit:?}");
    entries.bytes()
}

#[test]
fn a_passwd_file_round_trips_through_its_entries() {
    let texts: [&[u8]; 7] = [b"", b"\n", b"\n\n", b"a:b", b"a:b\n", b"a:b\n\n", ODD];
    for text in texts {
        assert_eq!(DatabaseEntries::read(text).bytes(), text);
    }
}

#[test]
fn a_passwd_edit_and_its_reverse_restore_every_byte() {
    let removed = Edit::removed(
        Database::Passwd,
        "root",
        "root:x:0:0:root:/root:/bin/sh".into(),
        &DatabaseEntries::read(ODD),
    );
    let cut = &ODD[..ODD.len() - 1];
    for text in [ODD, cut] {
        for edit in [made("ann"), field("bob", 6, "/bin/sh", "/bin/zsh")] {
            let there = edited(text, &edit);
            assert_ne!(there, text);
            assert_eq!(edited(&there, &edit.reversed()), text, "{edit:?}");
        }
    }
    let there = edited(ODD, &removed);
    assert!(!there.starts_with(b"root"));
    // If the entry above it does not exist, the restored entry is inserted last, before NIS.
    let back = edited(&there, &removed.reversed());
    assert!(back.ends_with(b"root:x:0:0:root:/root:/bin/sh\n+@netgroup::::::\n+::::::\n"));
}

#[test]
fn a_new_passwd_entry_is_placed_last_but_before_nis_entries() {
    let there = edited(ODD, &made("ann"));
    let text = String::from_utf8_lossy(&there).into_owned();
    let (ann, nis) = (text.find("\nann:"), text.find("\n+@"));
    assert!(ann > text.find("\nbob:") && ann < nis, "{text}");
    assert_eq!(
        edited(b"a:x", &made("ann")),
        b"a:x\nann:x:1001:1001::/home/ann:/bin/sh"
    );
    assert_eq!(
        edited(b"", &made("ann")),
        b"ann:x:1001:1001::/home/ann:/bin/sh\n"
    );
}

#[test]
fn a_removed_passwd_entry_is_restored_at_its_place() {
    let text = b"a:1:::::\nb:2:::::\nc:3:::::\n";
    let edit = Edit::removed(
        Database::Passwd,
        "b",
        "b:2:::::".into(),
        &DatabaseEntries::read(text),
    );
    let there = edited(text, &edit);
    assert_eq!(there, b"a:1:::::\nc:3:::::\n");
    assert_eq!(edited(&there, &edit.reversed()), text);
}

#[test]
fn a_passwd_entry_changed_by_others_is_foreign() {
    let there = DatabaseEntries::read(ODD);
    for edit in [
        // Another line under the name; an entry that is not UTF-8; a value that is neither.
        made("bob"),
        made("short"),
        field("bob", 6, "/bin/bash", "/bin/zsh"),
        field("short", 2, "5", "6"),
        field("nobody", 2, "5", "6"),
        member("nobody", "ann", true),
    ] {
        assert_eq!(edit.edit_state(&there), EditState::Foreign, "{edit:?}");
    }
}

#[test]
fn group_members_are_added_and_removed_one_by_one() {
    let text = b"sudo:x:27:bob,,eve\nempty:x:28:\n";
    let edit = member("sudo", "ann", true);
    let there = edited(text, &edit);
    assert_eq!(there, b"sudo:x:27:bob,eve,ann\nempty:x:28:\n");
    let alone = edited(text, &member("empty", "ann", true));
    assert_eq!(edited(&alone, &member("empty", "ann", false)), text);
}

#[test]
fn subordinate_id_ranges_of_one_user_are_distinguished_by_line() {
    let text = b"ann:100000:65536\nann:200000:65536\n";
    let line = || "ann:200000:65536".to_owned();
    let gone = Edit::removed(
        Database::Subuid,
        "ann",
        line(),
        &DatabaseEntries::read(text),
    );
    assert_eq!(edited(text, &gone), b"ann:100000:65536\n");
    let more = Edit::made(Database::Subuid, "ann", "ann:300000:65536".into());
    assert!(edited(text, &more).ends_with(b"ann:300000:65536\n"));
    assert_eq!(
        Edit::made(Database::Subuid, "ann", line()).edit_state(&DatabaseEntries::read(text)),
        EditState::After
    );
}

#[test]
fn the_original_passwd_value_is_kept_until_it_is_restored() {
    let mut kept = Vec::new();
    remember(&mut kept, &field("bob", 6, "/bin/sh", "/bin/zsh"));
    remember(&mut kept, &field("bob", 6, "/bin/zsh", "/bin/fish"));
    assert_eq!(kept, [field("bob", 6, "/bin/sh", "/bin/fish")]);
    // The whole entry is removed: a restore brings the line that was found originally.
    let line = "bob:x:1000:1000::/home/bob:/bin/fish".to_owned();
    let gone = Edit::removed(Database::Passwd, "bob", line, &DatabaseEntries::read(ODD));
    remember(&mut kept, &gone);
    let [
        Edit::Line {
            before: Some(found),
            ..
        },
    ] = &kept[..]
    else {
        panic!("{kept:?}");
    };
    assert_eq!(found, "bob:x:1000:1000::/home/bob:/bin/sh");

    let mut kept = vec![made("ann")];
    // Edits of an entry that machinist created are part of its creation.
    remember(&mut kept, &field("ann", 6, "/bin/sh", "/bin/zsh"));
    let [
        Edit::Line {
            before: None,
            after: Some(line),
            ..
        },
    ] = &kept[..]
    else {
        panic!("{kept:?}");
    };
    assert!(line.ends_with(":/bin/zsh"), "{line}");
    let line = "ann:x:1001:1001:changed:/home/ann:/bin/zsh".to_owned();
    let gone = Edit::removed(Database::Passwd, "ann", line, &DatabaseEntries::read(b""));
    remember(&mut kept, &gone);
    assert_eq!(kept, []);
}

#[test]
fn passwd_values_are_hidden_in_debug_output() {
    let secret = "$6$salt$hidden";
    let line = format!("ann:{secret}:::::::");
    let edit = Edit::made(Database::Shadow, "ann", line.clone());
    let shown = format!("{edit:?} {:?}", DatabaseEntries::read(line.as_bytes()));
    assert!(
        !shown.contains("hidden") && shown.contains("ann"),
        "{shown}"
    );
}
