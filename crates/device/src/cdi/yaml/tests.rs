use super::{
    read,
    scalar::{ScalarType, YamlScalar},
};
use machinist_yaml::ScalarTag;
use serde::Deserialize;

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
struct Shape {
    text: String,
    number: i64,
    flag: bool,
    list: Vec<Option<u32>>,
}

#[test]
fn yaml_scalars_are_read_as_by_the_go_library() {
    for (text, meaning) in [
        ("~", ScalarType::Null),
        ("", ScalarType::Null),
        ("TRUE", ScalarType::Flag(true)),
        ("yes", ScalarType::Text),
        ("0666", ScalarType::Integer(0o666)),
        ("0o17", ScalarType::Integer(15)),
        ("-0x1_F", ScalarType::Integer(-31)),
        ("08", ScalarType::Float(8.0)),
        ("1.5e1", ScalarType::Float(15.0)),
        ("18446744073709551615", ScalarType::Integer(u64::MAX.into())),
        (
            "+18446744073709551615",
            ScalarType::Float(18_446_744_073_709_551_615.0),
        ),
        ("1a", ScalarType::Text),
        ("--1", ScalarType::Text),
    ] {
        let scalar = YamlScalar::new(text.to_owned(), true, ScalarTag::None).unwrap();
        assert_eq!(scalar.meaning, meaning, "{text}");
    }
    let quoted = YamlScalar::new("5".to_owned(), false, ScalarTag::None).unwrap();
    assert_eq!(quoted.meaning, ScalarType::Text);
    let tagged = YamlScalar::new("5".to_owned(), false, ScalarTag::Integer).unwrap();
    assert_eq!(tagged.meaning, ScalarType::Integer(5));
}

#[test]
fn only_the_first_yaml_document_counts_and_merge_keys_apply() {
    let read = read::<Shape>(
        "text: 0.6\nflag: on\n<<: [{text: other, number: 017}, {number: 3}]\nlist: [1, ~]\n---\n: [}",
    );
    let shape = Shape {
        text: "0.6".into(),
        number: 15,
        flag: true,
        list: vec![Some(1), None],
    };
    assert_eq!(read.unwrap(), shape);
}

#[test]
fn yaml_errors_name_their_line() {
    for (text, why) in [
        (
            "text: a\ntext: b",
            "line 2: the key \"text\" is defined twice",
        ),
        (
            "text: a\nother: ~",
            "line 2: other: unknown field; expected one of text, number",
        ),
        (
            "number: '5'",
            "line 1: number: \"5\" has the wrong type or size; expected a whole number from -9223",
        ),
        (
            "list: [-1]",
            "line 1: list[0]: \"-1\" has the wrong type or size",
        ),
        (
            "list: a",
            "line 1: list: this is a text; expected a list of entries",
        ),
        ("text: [", "line 1: "),
        ("", "it is empty"),
    ] {
        let message = read::<Shape>(text).unwrap_err();
        assert!(
            message.starts_with(why) || (why == "line 1: " && message.starts_with("line")),
            "{message}"
        );
    }
}

#[test]
fn yaml_implicit_keys_must_be_on_one_line() {
    for text in [
        "{!!str text: a, number: 1}",
        "{text: !!str\n a,\n number\n}",
        "{? text\n: a}",
        "? text\n: a",
        "number: 1 # a & b!\n!!str text: a",
        "!!map\ntext: a",
    ] {
        read::<Shape>(text).unwrap_or_else(|why| panic!("{text:?}: {why}"));
    }
    for (text, why) in [
        ("{number: 1,!\n text: a}", "tag or anchor"),
        ("{number: 1,&x\n text: a}", "tag or anchor"),
        ("{text\n: a}", "colon"),
        ("{\"text\"\n : a}", "colon"),
    ] {
        let refused = read::<Shape>(text).unwrap_err();
        assert!(refused.contains(why), "{text:?}: {refused}");
    }
}

#[test]
fn yaml_that_libyaml_refuses_is_refused() {
    for text in [
        "%YAML 1.1\n# %x\n---\ntext: a",
        "%TAG ! tag:a,2000:\n---\ntext: a",
        "list: [1, ! ]",
        "list: [!\n1]",
        "? \n: a\ntext: a",
        "!!null : a\ntext: a",
        "~: a\ntext: a",
    ] {
        read::<Shape>(text).unwrap_or_else(|why| panic!("{text:?}: {why}"));
    }
    for (text, why) in [
        ("%YAM 1.1\n---\ntext: a", "%YAM is not a directive"),
        ("list: [1,!]", "a space is missing after a tag"),
        ("{text: a,!}", "a space is missing after a tag"),
        ("text: a\n: b", "a key is missing before the colon"),
        ("{text: a, : b}", "a key is missing before the colon"),
    ] {
        let refused = read::<Shape>(text).unwrap_err();
        assert!(refused.contains(why), "{text:?}: {refused}");
    }
}

#[test]
fn excessive_yaml_alias_expansion_is_rejected() {
    let mut text = "list: &l0 [1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned();
    for level in 1..12 {
        let alias = format!("*l{}, ", level - 1).repeat(8);
        text += &format!("x{level}: &l{level} [{alias}]\n");
    }
    let message = read::<Shape>(&text).unwrap_err();
    assert!(message.contains("aliases expand to more than"), "{message}");
}
