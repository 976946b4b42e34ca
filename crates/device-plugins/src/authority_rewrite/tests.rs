use super::*;

const PATH: &str = "/var/lib/kubelet/device-plugins/kubelet.sock";

/// `:method: POST`, `:scheme: http`, then `:authority`, then a header with a long value.
fn block(authority: &[u8]) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    block.extend_from_slice(authority);
    // A new name with a value of 200 bytes, not added to the table.
    block.extend([0, 1, b'x', 0x7f, 200 - 127]);
    block.extend([b'y'; 200]);
    block
}

fn literal(head: &[u8], value: &str) -> Vec<u8> {
    let length = u8::try_from(value.len()).unwrap();
    [head, &[length], value.as_bytes()].concat()
}

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, 1]);
    frame.extend_from_slice(payload);
    frame
}

#[test]
fn http2_authority_is_replaced_in_every_hpack_encoding() {
    let named = [&[0x40, 10], AUTHORITY_NAME].concat();
    let coded = [&[0x40, 0x88], AUTHORITY_NAME_HUFFMAN].concat();
    for head in [&[0x41][..], &[0x01], &[0x11], &named, &coded] {
        let changed = replaced(&block(&literal(head, PATH))).unwrap();
        assert_eq!(changed, block(&literal(head, "a")), "{head:x?}");
    }
    // A header that was sent before is referenced by its index.
    let again = block(&[0xbe]);
    assert_eq!(replaced(&again).unwrap(), again);
}

#[test]
fn http2_frames_are_found_wherever_the_stream_is_split() {
    let block_of = |authority: &str| block(&literal(&[0x41], authority));
    let padded = [&[3][..], &[1, 2, 3, 4, 5], &block_of(PATH), &[0; 3]].concat();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let data = frame(0, 1, &[0x41; 300]);
    let came = [
        &preface[..],
        &frame(4, 0, &[]),
        &frame(HEADERS, END_HEADERS, &block_of(PATH)),
        &data,
        &frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &padded),
    ]
    .concat();
    let plain = [&[1, 2, 3, 4, 5], &block_of("a")[..]].concat();
    let expected = [
        &preface[..],
        &frame(4, 0, &[]),
        &frame(HEADERS, END_HEADERS, &block_of("a")),
        &data,
        &frame(HEADERS, END_HEADERS | PRIORITY, &plain),
    ]
    .concat();
    for size in [1, 2, 9, 10, 31, 1000] {
        let (mut frames, mut out) = (FrameSplitter::new(), Vec::new());
        for piece in came.chunks(size) {
            frames.feed(piece, &mut out);
        }
        assert_eq!(out, expected, "in pieces of {size}");
    }
}

#[test]
fn unparsed_headers_are_passed_on_unchanged() {
    for broken in [
        &[0x41, 0x7f][..],
        &[0x41, 9, b'x'],
        &[0xff, 0xff, 0xff, 0xff, 0xff],
    ] {
        let frame = frame(HEADERS, END_HEADERS, broken);
        let (mut frames, mut out) = (FrameSplitter::new(), Vec::new());
        frames.pass = 0;
        frames.feed(&frame, &mut out);
        assert_eq!(out, frame);
    }
}
