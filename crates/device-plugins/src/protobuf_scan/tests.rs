use super::*;

const SHAPE: [CountedField; 2] = [
    CountedField(
        1,
        FieldCost::One,
        Some(&[CountedField(2, FieldCost::One, None)]),
    ),
    CountedField(3, FieldCost::Bytes, None),
];

#[test]
fn protobuf_fields_are_counted_by_message_shape() {
    // Field 1 with two fields 2 in it, an empty one, a list of three bytes, a field that is none of ours.
    let wire = [
        0x0a, 4, 0x12, 0, 0x12, 0, 0x0a, 0, 0x1a, 3, 1, 2, 3, 0x20, 7,
    ];
    assert_eq!(parts(&wire, &SHAPE), Ok(1 + 2 + 1 + 3));
    for wire in [&[0xff; 11][..], &[0x0a, 5, 0], &[0x0b], &[0x80]] {
        assert_eq!(parts(wire, &SHAPE), Err(Malformed), "{wire:?}");
    }
}

/// Bodies, none for those that are too long; and whether the message may end there.
type Told = (Vec<Option<Vec<u8>>>, bool);

fn apart(wire: &[u8], piece: usize) -> Result<Told, Malformed> {
    let (mut apart, mut all) = (StreamSplitter::new(1, 4), Vec::new());
    for came in wire.chunks(piece) {
        apart.feed(came, |found| match found {
            SplitItem::Body(body) => all.push(Some(body.to_vec())),
            SplitItem::TooLong => all.push(None),
        })?;
    }
    Ok((all, apart.is_whole()))
}

#[test]
fn a_message_is_split_independently_of_chunk_borders() {
    let wire = [
        0x0a, 2, b'h', b'i', // wanted
        0x08, 0x96, 0x01, // the same field as a number
        0x12, 3, 1, 2, 3, // another text
        0x0a, 0, // empty
        0x0d, 1, 2, 3, 4, 0x09, 1, 2, 3, 4, 5, 6, 7, 8, // fixed ones
        0x0a, 5, 1, 2, 3, 4, 5, // too long
        0x0a, 4, 1, 2, 3, 4,
    ];
    let expected = vec![
        Some(b"hi".to_vec()),
        Some(Vec::new()),
        None,
        Some(vec![1, 2, 3, 4]),
    ];
    for piece in 1..=wire.len() {
        assert_eq!(apart(&wire, piece), Ok((expected.clone(), true)), "{piece}");
    }
    assert!(!apart(&wire[..3], 1).unwrap().1, "half a body");
    assert!(!apart(&wire[..1], 1).unwrap().1, "a key alone");
}

proptest::proptest! {
    /// Whatever is cut anywhere says the same, and what is whole is what protobuf's own reader takes.
    #[test]
    fn protobuf_scan_never_panics(wire in proptest::collection::vec(proptest::num::u8::ANY, 0..200), piece in 1_usize..50) {
        let (whole, cut) = (apart(&wire, wire.len().max(1)), apart(&wire, piece));
        proptest::prop_assert_eq!(&whole, &cut);
        if fields(&wire).all(|field| field.is_ok()) {
            proptest::prop_assert!(whole.is_ok_and(|(_, whole)| whole));
        }
    }
}
