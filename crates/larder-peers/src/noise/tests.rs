use super::*;
use proptest::prelude::*;
use tokio::io::{DuplexStream, duplex, split};

const PSK: [u8; 32] = [7; 32];
const LONG: Duration = Duration::from_secs(20);

/// Both ends of a stream over a pipe with a buffer of `pipe_bytes`. Small buffers cause short writes.
async fn pair(pipe_bytes: usize) -> (NoiseStream<DuplexStream>, NoiseStream<DuplexStream>) {
    let (near, far) = duplex(pipe_bytes);
    let (near, far) = tokio::join!(initiate(near, &PSK, LONG), respond(far, &[PSK], LONG));
    (near.expect("initiated"), far.expect("responded").0)
}

/// Both ends of a stream whose encrypted bytes the test relays itself: near end, its pipe, the far end's pipe, far end.
async fn intercepted_pair()
-> (NoiseStream<DuplexStream>, DuplexStream, DuplexStream, NoiseStream<DuplexStream>) {
    let ((near, mut near_far), (mut far_near, far)) = (duplex(1 << 20), duplex(1 << 20));
    let relay = async {
        let mut first = [0; PREAMBLE_BYTES + HANDSHAKE_BYTES];
        near_far.read_exact(&mut first).await.expect("the first message");
        far_near.write_all(&first).await.expect("passed on");
        far_near.read_exact(&mut first).await.expect("the second message");
        near_far.write_all(&first).await.expect("passed on");
    };
    let (near, far, ()) = tokio::join!(initiate(near, &PSK, LONG), respond(far, &[PSK], LONG), relay);
    (near.expect("initiated"), near_far, far_near, far.expect("responded").0)
}

/// The other side is written from the protocol's description, with its numbers.
#[tokio::test]
async fn the_bytes_on_the_wire_are_those_of_the_protocol() {
    let builder = || {
        let builder = Builder::new("Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s".parse().expect("a pattern"));
        builder.prologue(b"lpeers\0\x01").and_then(|builder| builder.psk(0, &PSK)).expect("a secret")
    };
    let exchange = async |wire: &mut DuplexStream, state: HandshakeState| {
        let mut state = state.into_transport_mode().expect("complete");
        let (mut plain, mut frame) = ([0; 65_535], [0; 65_537]);
        for (head, length) in [([0, 21], 5), ([0xff; 2], 65_519), ([0, 17], 1), ([0, 16], 0)] {
            let frame = &mut frame[..2 + usize::from(u16::from_be_bytes(head))];
            wire.read_exact(frame).await.expect("a frame");
            assert_eq!(frame[..2], head);
            assert_eq!(state.read_message(&frame[2..], &mut plain).expect("authentic"), length);
        }
        for (head, said) in [([0, 18], &b"ok"[..]), ([0, 16], &b""[..])] {
            frame[..2].copy_from_slice(&head);
            let length = state.write_message(said, &mut frame[2..]).expect("encrypted");
            wire.write_all(&frame[..2 + length]).await.expect("sent");
        }
    };
    let converse = async |mut stream: NoiseStream<DuplexStream>| {
        for said in [&b"hello"[..], &[b'x'; 65_520]] {
            stream.write_all(said).await.expect("written");
            stream.flush().await.expect("flushed");
        }
        stream.shutdown().await.expect("ended");
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await.expect("read to its end");
        assert_eq!(heard, b"ok");
    };

    let (near, mut wire) = duplex(1 << 20);
    let far = async {
        let mut first = [0; 56];
        wire.read_exact(&mut first).await.expect("a first message");
        assert_eq!(first[..8], *b"lpeers\0\x01");
        let mut state = builder().build_responder().expect("a secret");
        state.read_message(&first[8..], &mut [0; 96]).expect("authentic");
        let mut second = [&b"lpeers\0\x01"[..], &[0; 48]].concat();
        state.write_message(&[], &mut second[8..]).expect("encrypted");
        wire.write_all(&second).await.expect("sent");
        exchange(&mut wire, state).await;
    };
    tokio::join!(far, async { converse(initiate(near, &PSK, LONG).await.expect("initiated")).await });

    let (near, mut wire) = duplex(1 << 20);
    let far = async {
        let mut state = builder().build_initiator().expect("a secret");
        let mut first = [&b"lpeers\0\x01"[..], &[0; 48]].concat();
        state.write_message(&[], &mut first[8..]).expect("encrypted");
        wire.write_all(&first).await.expect("sent");
        let mut second = [0; 56];
        wire.read_exact(&mut second).await.expect("a second message");
        assert_eq!(second[..8], *b"lpeers\0\x01");
        state.read_message(&second[8..], &mut [0; 96]).expect("authentic");
        exchange(&mut wire, state).await;
    };
    tokio::join!(far, async { converse(respond(near, &[PSK], LONG).await.expect("responded").0).await });
}

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(length)
    .collect()
}

/// Writes `all` in pieces, flushes after every third, and shuts down.
async fn write_in(mut to: impl AsyncWrite + Unpin, all: &[u8], pieces: &[usize]) {
    let mut rest = all;
    for (offset, &piece) in pieces.iter().cycle().enumerate() {
        let (now, later) = rest.split_at(piece.min(rest.len()));
        to.write_all(now).await.expect("written");
        if offset % 3 == 0 {
            to.flush().await.expect("flushed");
        }
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    to.shutdown().await.expect("ended");
}

async fn read_in(mut from: impl AsyncRead + Unpin, pieces: &[usize]) -> Vec<u8> {
    let mut all = Vec::new();
    for &piece in pieces.iter().cycle() {
        let mut buf = vec![0; piece];
        let got = from.read(&mut buf).await.expect("read");
        if got == 0 {
            break;
        }
        all.extend_from_slice(&buf[..got]);
    }
    all
}

fn pieces() -> impl Strategy<Value = Vec<usize>> {
    let piece = prop_oneof![1_usize..40, 1_usize..5_000, PLAIN_BYTES_MAX - 2..PLAIN_BYTES_MAX + 40];
    proptest::collection::vec(piece, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_time: 20_000, ..ProptestConfig::with_cases(12) })]

    #[test]
    fn bytes_arrive_unchanged_in_both_directions_at_once(
        seed in any::<u64>(),
        lengths in (0_usize..80_000, 0_usize..80_000),
        splits in (pieces(), pieces(), pieces(), pieces()),
        // A pipe smaller than a handshake message would deadlock. No socket is that small.
        pipe_bytes in prop_oneof![PREAMBLE_BYTES + HANDSHAKE_BYTES..200, 1_000_usize..100_000],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (near, far) = pair(pipe_bytes).await;
            // Many single-byte pieces take long and test nothing more.
            let pieces_max = if pipe_bytes < 200 { 1 } else { 20 };
            let length = |length: usize, write: &[usize], read: &[usize]| {
                length.min(pieces_max * write.iter().sum::<usize>()).min(pieces_max * read.iter().sum::<usize>())
            };
            let there = bytes(seed, length(lengths.0, &splits.0, &splits.2));
            let back = bytes(!seed, length(lengths.1, &splits.1, &splits.3));
            let ((near_read, near_write), (far_read, far_write)) = (split(near), split(far));
            let ((), (), came, returned) = tokio::join!(
                write_in(near_write, &there, &splits.0),
                write_in(far_write, &back, &splits.1),
                read_in(far_read, &splits.2),
                read_in(near_read, &splits.3),
            );
            assert!(came == there && returned == back);
        });
    }
}

#[tokio::test]
async fn one_direction_ends_and_the_other_continues() {
    let (mut near, mut far) = pair(64).await;
    near.write_all(b"asked").await.expect("written");
    near.shutdown().await.expect("ended");
    assert!(near.write_all(b"more").await.is_err(), "nothing comes after the end");
    let mut asked = String::new();
    far.read_to_string(&mut asked).await.expect("read to its end");
    assert_eq!(asked, "asked");
    far.write_all(b"answered").await.expect("written");
    far.shutdown().await.expect("ended");
    let mut answered = String::new();
    near.read_to_string(&mut answered).await.expect("read to its end");
    assert_eq!(answered, "answered");
}

/// A write that is dropped half-way, as by `select!`, neither loses nor repeats accepted bytes.
#[tokio::test]
async fn cancelled_reads_and_writes_lose_nothing() {
    let (near, far) = pair(50).await;
    let ((_near_read, mut near_write), (mut far_read, _far_write)) = (split(near), split(far));
    let all = bytes(3, 30_000);
    let writing = async {
        let mut rest = &all[..];
        while !rest.is_empty() {
            tokio::select! {
                biased;
                written = near_write.write(&rest[..rest.len().min(700)]) => {
                    rest = &rest[written.expect("written")..];
                }
                () = tokio::task::yield_now() => {}
            }
            tokio::select! {
                biased;
                flushed = near_write.flush() => flushed.expect("flushed"),
                () = tokio::task::yield_now() => {}
            }
        }
        near_write.shutdown().await.expect("ended");
    };
    let reading = async {
        let (mut came, mut buf) = (Vec::new(), [0; 333]);
        loop {
            tokio::select! {
                biased;
                read = far_read.read(&mut buf) => match read.expect("read") {
                    0 => break came,
                    got => came.extend_from_slice(&buf[..got]),
                },
                () = tokio::task::yield_now() => {}
            }
        }
    };
    let ((), came) = tokio::join!(writing, reading);
    assert!(came == all);
}

#[tokio::test]
async fn a_wrong_secret_is_an_error_on_both_sides() {
    let (near, far) = duplex(1_024);
    let respond = async {
        // Dropping the stream closes it.
        respond(far, &[[8; 32], [9; 32]], LONG).await.expect_err("a wrong secret")
    };
    let (near, far) = tokio::join!(initiate(near, &PSK, LONG), respond);
    assert!(matches!(far, NoiseError::WrongSecret), "{far:?}");
    assert!(matches!(near.expect_err("rejected"), NoiseError::Rejected));
}

#[tokio::test]
async fn the_index_of_the_secret_is_returned() {
    for (secret, index) in [([8; 32], 0), (PSK, 1)] {
        let (near, far) = duplex(1_024);
        let (near, far) = tokio::join!(initiate(near, &secret, LONG), respond(far, &[[8; 32], PSK], LONG));
        let (mut near, (mut far, accepted)) = (near.expect("initiated"), far.expect("responded"));
        assert_eq!(accepted, index);
        near.write_all(b"said").await.expect("staged");
        near.flush().await.expect("sent");
        let mut heard = [0; 4];
        far.read_exact(&mut heard).await.expect("received");
        assert_eq!(&heard, b"said");
    }
}

#[tokio::test]
async fn other_protocols_other_versions_and_silence_are_errors() {
    let said = async |first: &[u8]| {
        let (mut near, far) = duplex(1_024);
        near.write_all(first).await.expect("written");
        respond(far, &[PSK], Duration::from_millis(20)).await.expect_err("refused")
    };
    assert!(matches!(said(b"GET / HTTP/1.1\r\n\r\n").await, NoiseError::UnknownProtocol));
    assert!(matches!(said(b"lpeers\x01\x02").await, NoiseError::Version(0x102)));
    assert!(matches!(said(b"lpee").await, NoiseError::Timeout));
}

#[tokio::test]
async fn streams_cut_at_any_byte_are_errors() {
    for kept in 0.. {
        let (mut near, mut wire, mut to_far, mut far) = intercepted_pair().await;
        for piece in [&b"one"[..], b"and two"] {
            near.write_all(piece).await.expect("written");
            near.flush().await.expect("flushed");
        }
        near.shutdown().await.expect("ended");
        let mut sent = Vec::new();
        wire.read_to_end(&mut sent).await.expect("what was sent");
        to_far.write_all(&sent[..kept]).await.expect("passed on");
        to_far.shutdown().await.expect("cut");
        let mut came = Vec::new();
        let read = far.read_to_end(&mut came).await;
        assert!(b"oneand two".starts_with(&came));
        if kept == sent.len() {
            assert_eq!(read.expect("whole"), 10);
            break;
        }
        assert_eq!(read.expect_err("cut").kind(), io::ErrorKind::UnexpectedEof, "cut after {kept}");
    }
}

#[tokio::test]
async fn changed_repeated_and_reordered_frames_are_errors() {
    let frames = async |near: &mut NoiseStream<DuplexStream>, wire: &mut DuplexStream| {
        let mut frames = Vec::new();
        for piece in [&b"first"[..], b"other"] {
            near.write_all(piece).await.expect("written");
            near.flush().await.expect("flushed");
            let mut frame = vec![0; HEAD_BYTES + piece.len() + TAG_BYTES];
            wire.read_exact(&mut frame).await.expect("sent");
            frames.push(frame);
        }
        frames
    };
    let change = |frames: &[Vec<u8>], case: usize| match case {
        0 => frames[1].clone(),
        1 => [frames[0].clone(), frames[0].clone()].concat(),
        // Flips each bit, also those of the length. A longer length makes the reader wait until the stream ends.
        offset => {
            let mut all = frames.concat();
            all[(offset - 2) / 8] ^= 1 << ((offset - 2) % 8);
            all
        }
    };
    for case in 0..2 + 8 * (2 * (HEAD_BYTES + 5 + TAG_BYTES)) {
        let (mut near, mut wire, mut to_far, mut far) = intercepted_pair().await;
        let changed = change(&frames(&mut near, &mut wire).await, case);
        to_far.write_all(&changed).await.expect("passed on");
        to_far.shutdown().await.expect("ended");
        let mut came = Vec::new();
        let error = far.read_to_end(&mut came).await.expect_err("noticed");
        assert!(
            matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof),
            "case {case}: {error}"
        );
        assert!(b"first".starts_with(&came) || came == b"first", "case {case}: {came:?}");
    }
}

/// Buffers grow to one frame and no further.
#[tokio::test]
async fn buffers_are_bounded() {
    let (near, far) = pair(1 << 20).await;
    let ((mut near_read, mut near_write), (mut far_read, mut far_write)) = (split(near), split(far));
    let all = bytes(9, 3 << 20);
    let ((), came) =
        tokio::join!(write_in(&mut near_write, &all, &[100_000]), read_in(&mut far_read, &[50_000]));
    assert!(came == all);
    write_in(&mut far_write, b"", &[1]).await;
    assert_eq!(near_read.read(&mut [0; 8]).await.expect("the end"), 0);
    let (near, far) = (near_read.unsplit(near_write), far_read.unsplit(far_write));
    assert!(near.output.staged.capacity() <= NOISE_BYTES_MAX);
    assert!(near.output.encrypted.capacity() <= HEAD_BYTES + NOISE_BYTES_MAX);
    assert!(far.input.encrypted.capacity() <= HEAD_BYTES + NOISE_BYTES_MAX);
    assert!(far.input.plain.capacity() <= NOISE_BYTES_MAX);
}
