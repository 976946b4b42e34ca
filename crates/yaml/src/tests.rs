use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Shape {
    text: String,
    number: Option<u32>,
    #[serde(default)]
    flag: bool,
    #[serde(default)]
    list: Vec<Word>,
    #[serde(default)]
    map: BTreeMap<String, i64>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
enum Word {
    Alone,
    With(String),
}

fn read(text: &str) -> Result<Shape, String> {
    let document = read_only(text, CoreSchema);
    let read = document.and_then(|document| decode(&document));
    read.map_err(|error| {
        let (line, column) = (error.place.line, error.place.column);
        format!("{line}:{column}: {error}")
    })
}

fn value(text: &str) -> Result<String, String> {
    let document = read_only(text, CoreSchema).map_err(|error| error.message)?;
    let Value::Scalar(scalar) = &document.value else {
        return Err("not a scalar".into());
    };
    scalar.value().map(|value| format!("{value:?}"))
}

#[test]
fn untyped_scalars_follow_the_core_schema() {
    for (text, expected) in [
        ("~", "Null"),
        ("True", "Flag(true)"),
        ("yes", "Text(\"yes\")"),
        ("off", "Text(\"off\")"),
        ("0x1F", "Integer(31)"),
        ("0o17", "Integer(15)"),
        ("1_000", "Integer(1000)"),
        ("1__0", "Text(\"1__0\")"),
        ("+5", "Integer(5)"),
        ("-0x10", "Integer(-16)"),
        // YAML 1.2 has no octal numbers with a leading zero.
        ("017", "Float(17.0)"),
        ("18446744073709551615", "Integer(18446744073709551615)"),
        ("18446744073709551616", "Float(1.8446744073709552e19)"),
        ("1e3", "Float(1000.0)"),
        ("1.2.3", "Text(\"1.2.3\")"),
        ("inf", "Text(\"inf\")"),
        ("'5'", "Text(\"5\")"),
        ("!!str 5", "Text(\"5\")"),
        ("! 5", "Text(\"5\")"),
        ("!!int '5'", "Integer(5)"),
        ("!!null x", "Null"),
        ("!local 5", "Integer(5)"),
    ] {
        assert_eq!(value(text).as_deref(), Ok(expected), "{text}");
    }
    for (text, why) in [
        (".inf", "is not a finite number"),
        ("1e999", "is not a finite number"),
        ("!!bool yes", "has a tag of another type"),
        ("!!binary aGk=", "the tag !!binary is not supported here"),
    ] {
        let refused = value(text).unwrap_err();
        assert!(refused.contains(why), "{text}: {refused}");
    }
}

#[test]
fn decoded_values_have_the_types_of_their_fields() {
    let text = "text: ! 0x10\nnumber: ' 7 '\nflag: 'true'\nlist: [alone, {with: a}, {alone: ~}]\n\
                map: {1: ! 1, \"~\": 0b11}\n";
    let expected = Shape {
        text: "0x10".into(),
        number: Some(7),
        flag: true,
        list: vec![Word::Alone, Word::With("a".into()), Word::Alone],
        map: [("1".into(), 1), ("~".into(), 3)].into(),
    };
    assert_eq!(read(text), Ok(expected));
}

#[test]
fn merge_keys_add_fields_that_a_map_lacks() {
    let text = "<<: [{text: a, <<: {flag: true}}, {text: b, number: 2}]\nnumber: 1\nlist: []\n";
    let shape = read(text).unwrap();
    assert_eq!(
        (shape.text.as_str(), shape.number, shape.flag),
        ("a", Some(1), true)
    );
    assert_eq!(read("text: a\n<<: ~\n").unwrap().text, "a");
    let refused = read("text: a\n<<: b\n").unwrap_err();
    assert!(
        refused.starts_with("2:5: merge key << requires a map"),
        "{refused}"
    );
}

#[test]
fn decode_errors_have_path_and_place() {
    for (text, expected) in [
        ("number: 1", "1:1: text: text is missing"),
        ("text: ~", "1:7: text: value is missing; expected a text"),
        (
            "text: [a]",
            "1:7: text: this is a list of entries; expected a text",
        ),
        (
            "text: a\nnumber: 4294967296",
            "2:9: number: \"4294967296\" has the wrong type or size; expected a whole number from 0 to 4294967295",
        ),
        (
            "text: a\nnumber: 07",
            "2:9: number: \"07\" has the wrong type or size; expected a whole number from 0 to 4294967295",
        ),
        (
            "text: a\nother: 1",
            "2:1: other: unknown field; expected one of text, number, flag, list, map",
        ),
        (
            "text: a\nlist:\n- alone\n- never",
            "4:3: list[1]: \"never\" is not known; expected one of alone, with",
        ),
        (
            "text: a\nlist: [{alone: 1}]",
            "2:16: list[0].alone: the keyword takes no value; expected the keyword without a value",
        ),
        (
            "text: a\nlist: [with]",
            "2:8: list[0]: this is a keyword without a value; expected newtype variant",
        ),
        (
            "text: a\nlist: [{with: [a]}]",
            "2:15: list[0].with: this is a list of entries; expected a text",
        ),
        (
            "text: a\nmap: {a: {b: c}}",
            "2:10: map.a: this is a map of fields; expected a whole number",
        ),
        // The place of an alias, not that of the value that it repeats.
        (
            "text: &a b\nnumber: *a",
            "2:9: number: \"b\" has the wrong type or size; expected a whole number",
        ),
        (
            "- a",
            "1:1: this is a list of entries; expected a map of fields",
        ),
    ] {
        let refused = read(text).unwrap_err();
        assert!(refused.starts_with(expected), "{text:?}: {refused}");
    }
}

#[test]
fn only_one_document_without_duplicate_keys_is_read() {
    for (text, expected) in [
        (
            "text: a\n---\ntext: b",
            "2:1: a second YAML document starts here",
        ),
        (
            "text: a\n'text': b",
            "2:1: the key \"text\" is defined twice",
        ),
        ("text: a\n~: b", "2:1: a key must be a text"),
        ("text: a\n[b]: c", "2:1: a key must be a scalar"),
    ] {
        assert_eq!(
            read(text).unwrap_err().split([';', ',']).next(),
            Some(expected),
            "{text:?}"
        );
    }
    assert_eq!(value("# nothing\n").as_deref(), Ok("Null"));
}
