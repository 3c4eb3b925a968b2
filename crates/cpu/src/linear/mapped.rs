//! A linear map whose weights stay in the file: rows are read, packed into a thread's scratch memory, used and forgotten.
//!
//! The same bits as a packed [`super::Linear`], at a cost for each call of reading and turning all weights. For the output
//! embedding, which only chat needs as a whole.

use descant_release::Tensor;

use super::rows::{Order, Rows, round_terms};
use super::{Activations, LinearRight};
use crate::arch::{LANES, Pool, Right, Tile, Tiles, linear_tile, with_scratch};
use crate::ops::{Precision, gate};

/// Outputs of a task.
const TASK_OUTPUTS: usize = 16 * LANES;
/// 2⁻⁴⁹: smaller weights are taken for zero in the bf16 form.
const LEAST_WEIGHT: f32 = f32::from_bits((127 - 49) << 23);

/// `out = x · Wᵀ` of `[N, K]` weights in a file: `x` `[rows, K]`, `out` `[rows, N]`; rounded as the precision asks.
pub(crate) fn forward_mapped(
    pool: &Pool,
    precision: Precision,
    weights: &Tensor<'_>,
    x: &[f32],
    out: &mut [f32],
) {
    let (outputs, inputs) = (weights.shape[0], weights.row_len());
    let rows = out.len() / outputs;
    assert_eq!(
        (x.len(), out.len()),
        (rows * inputs, rows * outputs),
        "x is [rows, K], out is [rows, N]"
    );
    if rows == 0 {
        return;
    }
    let tiles = Tiles::even(out, outputs, rows, TASK_OUTPUTS);
    pool.split(&tiles, |_, mut tile| {
        let rows = Rows {
            x,
            count: rows,
            width: inputs,
            range: 0..inputs,
        };
        let terms = inputs.next_multiple_of(2);
        let packed = rows.packed_len(Order::Rising, terms);
        with_scratch(packed + terms * (LANES + 1), |scratch| {
            let (packed, scratch) = scratch.split_at_mut(packed);
            let (panel, row) = scratch.split_at_mut(terms * LANES);
            fill(
                pool,
                precision,
                weights,
                &rows,
                &mut tile,
                (packed, panel, row),
            );
        });
    });
    if precision.is_bf16() {
        gate::round(pool, out);
    }
}

/// Fills a tile, panel by panel.
fn fill(
    pool: &Pool,
    precision: Precision,
    weights: &Tensor<'_>,
    rows: &Rows<'_>,
    tile: &mut Tile<'_>,
    (packed, panel, row): (&mut [f32], &mut [f32], &mut [f32]),
) {
    let isa = pool.isa();
    // The hardware's dot product needs pairs; the chain it stands for does not.
    let order = match precision {
        Precision::Bf16 => Order::OddFirst,
        Precision::F32 => Order::of(isa, Activations::F32),
    };
    let left = rows.left(isa, order, packed);
    let columns = tile.columns();
    for start in columns.clone().step_by(LANES) {
        let outputs = start..(start + LANES).min(columns.end);
        panel.fill(0.0);
        row.fill(0.0);
        for (lane, output) in outputs.clone().enumerate() {
            let values = &mut row[..rows.width];
            weights.copy_rows_f32_into(output..output + 1, values);
            if order == Order::Rising {
                values
                    .iter()
                    .enumerate()
                    .for_each(|(k, value)| panel[k * LANES + lane] = *value);
                continue;
            }
            with_scratch(values.len(), |rounded| {
                round_terms(isa, values, LEAST_WEIGHT, rounded);
                rounded
                    .iter()
                    .enumerate()
                    .for_each(|(k, value)| panel[(k ^ 1) * LANES + lane] = *value);
            });
        }
        let right = LinearRight::Floats(Right {
            data: panel,
            k_stride: LANES,
            panel_stride: 0,
        });
        linear_tile(
            isa,
            panel.len() / LANES,
            left,
            right,
            &mut tile.narrow(outputs),
            false,
        );
    }
}
