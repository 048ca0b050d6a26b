use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn parsed(body: &Value) -> Result<Prompt, PromptError> {
    Prompt::parse(body.to_string().as_bytes())
}

fn chat(messages: &Value) -> Prompt {
    parsed(&json!({ "model": "m", "messages": messages })).expect("valid")
}

#[test]
fn a_turn_begins_with_the_blocks_of_the_turn_before() {
    let long = |letter: &str| letter.repeat(3 * BLOCK_BYTES);
    let mut messages = vec![json!({ "role": "user", "content": long("a") })];
    let first = chat(&messages.clone().into());
    messages.push(json!({ "role": "assistant", "content": long("b") }));
    let second = chat(&messages.into());
    // The last block of the first turn was not full.
    assert_eq!(first.ids.len(), 4);
    assert_eq!(second.ids[..3], first.ids[..3]);
    assert_ne!(second.ids[3], first.ids[3]);
    assert_eq!(second.bytes, first.bytes + 3 * BLOCK_BYTES as u64 + 11);
    // The id of a block stands for all text before it.
    let other = chat(&json!([{ "role": "user", "content": format!("x{}", &long("a")[1..]) }]));
    assert!(other.ids.iter().zip(&first.ids).all(|(other, one)| other != one));
    let tokens: Vec<u32> = first.blocks().iter().map(|block| block.tokens).collect();
    // 2 bytes of the model, 5 of the role and 1 after the content.
    assert_eq!(tokens, [64, 64, 64, 2]);
}

#[test]
fn all_that_engines_see_counts() {
    let different = [
        json!([{ "role": "user", "content": "a" }]),
        json!([{ "role": "system", "content": "a" }]),
        json!([{ "role": "user", "content": [{ "type": "text", "text": "a" }] }]),
        json!([{ "role": "assistant", "content": "a", "tool_calls": [{ "id": "1" }] }]),
        json!([{ "role": "user", "content": "a" }, { "role": "user", "content": "a" }]),
    ];
    let mut ids: Vec<u64> = different.iter().map(|messages| chat(messages).ids[0]).collect();
    ids.push(parsed(&json!({ "model": "n", "messages": different[0] })).expect("valid").ids[0]);
    let tools = json!([{ "type": "function" }]);
    let with = json!({ "model": "m", "tools": tools, "messages": different[0] });
    ids.push(parsed(&with).expect("valid").ids[0]);
    let distinct: std::collections::BTreeSet<u64> = ids.iter().copied().collect();
    assert_eq!(distinct.len(), ids.len(), "{ids:?}");
}

#[test]
fn bodies_without_a_prompt_are_errors() {
    for body in [json!({}), json!({ "model": "m", "messages": [] }), json!({ "prompt": 5 })] {
        assert!(matches!(parsed(&body), Err(PromptError::NoPrompt)), "{body}");
    }
    let long = format!("\"{}\"", "A".repeat(100_000));
    for text in ["", "[1]", "{\"prompt\": \"a\"", "prompt", "\"\"", &long] {
        let error = Prompt::parse(text.as_bytes()).expect_err("no JSON object").to_string();
        assert!(error.starts_with("the body is not a JSON object: ") && error.len() < 120, "{error}");
    }
}

/// A client sends half of a pair if it has cut a text in the middle of a character.
#[test]
fn half_of_a_surrogate_pair_is_text() {
    let whole = Prompt::parse(br#"{"prompt": "a\ud83d\ude00"}"#).expect("valid");
    let half = Prompt::parse(br#"{"prompt": "a\ud83d"}"#).expect("JSON by RFC 8259 section 8.2");
    assert_ne!(whole, half);
    assert_eq!(whole, Prompt::parse("{\"prompt\": \"a\u{1f600}\"}".as_bytes()).expect("valid"));
}

#[test]
fn the_order_of_keys_does_not_matter() {
    let one =
        Prompt::parse(br#"{"model": "m", "messages": [{"role": "user", "content": "a"}]}"#).expect("valid");
    let two = Prompt::parse(br#"{"messages":[{"content":"a","role":"user"}],"n":{"x":[]},"model":"m"}"#)
        .expect("valid");
    assert_eq!(one, two);
}

proptest! {
    /// The division does not depend on the pieces in which the text was pushed.
    #[test]
    fn pieces_do_not_matter(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3_000), 0..6)) {
        let mut hasher = BlockHasher::default();
        pieces.iter().for_each(|piece| hasher.push(piece));
        let prompt = hasher.finish();
        let (text, mut before) = (pieces.concat(), 0_u64);
        let ids: Vec<u64> = text.chunks(BLOCK_BYTES).map(|block| {
            before = TargetId::of_parts(&[&before.to_le_bytes(), block]).0;
            before
        }).collect();
        prop_assert_eq!(&prompt.ids, &ids);
        let tokens: u64 = prompt.blocks().iter().map(|block| u64::from(block.tokens)).sum();
        prop_assert_eq!(tokens, (text.len() as u64).div_ceil(u64::from(TOKEN_BYTES)));
    }

    /// Any body is a prompt or an error.
    #[test]
    fn any_body_is_a_prompt_or_an_error(body in prop::collection::vec(any::<u8>(), 0..200), text in any::<String>()) {
        if let Ok(prompt) = Prompt::parse(&body) {
            prop_assert!(!prompt.ids.is_empty());
        }
        let prompt = parsed(&json!({ "prompt": text })).expect("a prompt, even if it is empty");
        prop_assert_eq!(prompt.bytes, text.len() as u64 + 1);
    }
}
