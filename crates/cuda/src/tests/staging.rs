//! The way of weights to the device.

use super::{Random, device};
use crate::driver::Staging;

#[test]
fn weights_arrive_whole_through_pinned_pieces() {
    let Some(device) = device(false) else { return };
    let gpu = &device.gpu;
    let mut random = Random::new(5);
    // Two pieces and a bit, so that a buffer is used again; then lines, some of which would straddle a piece's end.
    let values: Vec<u16> = random.bf16((65 << 19) + 8, 1.0);
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut staging = Staging::new(gpu).unwrap();
    let whole = device.poisoned(values.len());
    staging.upload(&whole, &bytes).unwrap();
    assert_eq!(device.read(&whole), values);

    let (lines, width, pitch) = (values.len() / 3000, 3000, 3008);
    let spread = device.poisoned(lines * pitch);
    let from = &bytes[..2 * lines * width];
    staging
        .upload_lines(&spread, from, 2 * width, 2 * pitch)
        .unwrap();
    drop(staging);
    for (line, (found, wanted)) in device
        .read(&spread)
        .chunks(pitch)
        .zip(values.chunks(width))
        .enumerate()
    {
        assert_eq!(found[..width], *wanted, "line {line}");
        assert_eq!(found[width..], [0xFFFF; 8], "between lines {line}");
    }
}
