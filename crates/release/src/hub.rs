//! The Hub.
/// x
#[derive(Debug)]
pub struct HubError;
impl std::fmt::Display for HubError { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("hub") } }
impl std::error::Error for HubError {}
