//! What a release is, in three numbers: BLAKE3 digests that the tool `b3sum` finds as well.

/// BLAKE3 digests of a release, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    /// Of the backbone: `b3sum config.json model*.safetensors | b3sum`.
    pub model: String,
    /// Of the head: `b3sum joint_head*` and `lm_head_rows.safetensors` where it is there, `| b3sum`; of nothing for a release
    /// without one.
    pub head: String,
    /// Of the tokenizer: `b3sum tokenizer.json`.
    pub tokenizer: String,
}

/// Digests of files, as `b3sum` lists them.
#[derive(Default)]
pub(crate) struct Sums(Vec<(String, String)>);

impl Sums {
    pub(crate) fn add(&mut self, name: String, bytes: &[u8]) {
        self.0.push((name, of(bytes)));
    }

    /// The digest of the list, sorted by name.
    pub(crate) fn digest(mut self) -> String {
        self.0.sort();
        let lines = self.0.iter().map(|(name, sum)| format!("{sum}  {name}\n"));
        of(lines.collect::<String>().as_bytes())
    }
}

/// The digest of some bytes, in hexadecimal.
pub(crate) fn of(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the specification: the digest of no bytes, and of `abc`.
    #[test]
    fn digests_are_blake3() {
        assert_eq!(
            of(b""),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
        assert_eq!(
            of(b"abc"),
            "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
        );
    }

    #[test]
    fn a_list_is_what_b3sum_prints() {
        let mut sums = Sums::default();
        sums.add("b".to_owned(), b"abc");
        sums.add("a".to_owned(), b"");
        let list = format!("{}  a\n{}  b\n", of(b""), of(b"abc"));
        assert_eq!(sums.digest(), of(list.as_bytes()));
    }
}
