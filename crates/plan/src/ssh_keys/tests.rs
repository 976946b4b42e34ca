use super::*;

fn user(keys: &[&str]) -> User {
    let ssh_authorized_keys = keys.iter().map(|key| (*key).to_owned()).collect();
    User {
        ssh_authorized_keys,
        ..User::default()
    }
}

#[test]
fn a_block_is_replaced_where_it_stands_and_taken_out_again() {
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
fn a_text_without_a_last_newline_keeps_its_last_key_whole() {
    let text = with_block("ssh-ed25519 AAAA me", &user(&["k"]));
    assert!(text.starts_with("ssh-ed25519 AAAA me\n# BEGIN"));
}

#[test]
fn a_block_without_an_end_is_not_taken_for_ours() {
    let torn = format!("{BEGIN_MARKER}\nssh-ed25519 AAAA me\n");
    assert_eq!(without_block(&torn), None);
}
