use super::{key_block::BEGIN_MARKER, *};

fn user(keys: &[&str]) -> User {
    let ssh_authorized_keys = keys.iter().map(|key| (*key).to_owned()).collect();
    User {
        ssh_authorized_keys,
        ..User::default()
    }
}

#[test]
fn the_managed_key_block_is_replaced_in_place_and_removed() {
    let mine = "ssh-ed25519 AAAA me\n";
    let first = with_block(mine, &user(&["ssh-ed25519 BBBB one"]));
    assert!(first.starts_with(mine));
    let later = format!("{first}ssh-ed25519 CCCC later\n");
    let second = with_block(&later, &user(&["ssh-ed25519 DDDD two"]));
    assert!(!second.contains("BBBB") && second.contains("DDDD"));
    assert_eq!(
        without_block(&second).as_deref(),
        Some("ssh-ed25519 AAAA me\nssh-ed25519 CCCC later\n")
    );
}

#[test]
fn a_begin_line_without_an_end_line_belongs_to_the_user() {
    let own = format!("{BEGIN_MARKER}\nssh-ed25519 AAAA me\n");
    let first = with_block(&own, &user(&["ssh-ed25519 BBBB one"]));
    let second = with_block(&first, &user(&["ssh-ed25519 CCCC two"]));
    assert!(
        second.starts_with(&own) && !second.contains("BBBB"),
        "{second}"
    );
    assert_eq!(without_block(&second), Some(own));
}

#[test]
fn a_text_without_a_last_newline_keeps_its_last_key_whole_and_gets_none_back() {
    let mine = "ssh-ed25519 AAAA me";
    let text = with_block(mine, &user(&["k"]));
    assert!(text.starts_with("ssh-ed25519 AAAA me\n# BEGIN"));
    let changed = with_block(&text, &user(&["l"]));
    assert!(changed.contains("\nl\n") && !changed.contains("\nk\n"));
    assert_eq!(without_block(&changed).as_deref(), Some(mine));
    let later = format!("{changed}ssh-ed25519 BBBB later\n");
    let expected = "ssh-ed25519 AAAA me\nssh-ed25519 BBBB later\n";
    assert_eq!(without_block(&later).as_deref(), Some(expected));
}

#[test]
fn a_file_of_keys_keeps_the_mode_and_owner_that_sshd_accepts() {
    let account = UserFacts {
        uid: 1000,
        gid: 1000,
        home: None,
    };
    for (there, kept) in [
        ((0o600, 1000, 1000), true),
        ((0o644, 1000, 100), true),
        ((0o644, 0, 0), true),
        ((0o600, 0, 0), false),
        ((0o664, 1000, 1000), false),
        ((0o700, 1000, 1000), false),
        ((0o4644, 1000, 1000), false),
        ((0o644, 1001, 1000), false),
        ((0o044, 1000, 1000), false),
    ] {
        let (mode, uid, gid) = there;
        let found = is_fit_for_keys(Attributes { mode, uid, gid }, &account);
        assert_eq!(found, kept, "{there:?}");
    }
}

#[test]
fn a_key_block_without_end_marker_is_not_treated_as_ours() {
    let torn = format!("{BEGIN_MARKER}\nssh-ed25519 AAAA me\n");
    assert_eq!(without_block(&torn), None);
}
