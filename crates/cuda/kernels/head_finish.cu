// The joint schema head once every row of a prompt is there: the options' and questions' own maps, all in f64, by one kernel that
// goes through a list of phases. Between its launches lies attention over the memory's rows (head_sm90.cu, head.cu).
//
// Letters   H hidden, W width; q, c, x, g are rows of H, r, b, s, f rows of W; a pair is one head of one query; u is what a pair's
//           scores are dot products of memory rows with. Widths of stored rows ("pitch") are multiples of 8.
// Phases    a phase is so many items, each the work of one block; block b takes items b, b + blocks, ... from the phase's first
//           block on. Phases up to one with `ends` set are one stage, which need nothing of each other; a stage begins when all blocks
//           have ended the one before. A launch takes a range of the list.
// Grid      any number of blocks, all at once on the device (a cooperative launch), so that they may wait for one another.
// Ahead     while a block waits it asks for the weights of the phase after the next, so that they are in the second-level cache
//           when their turn comes; the list goes on past a launch's end, and so does this.
// Sum order fixed by the item: its threads' values ascending, the lanes over distances 16, 8, 4, 2, 1, the warps in order; linear
//           maps as said there. So the bits depend neither on the grid nor on how items fall to blocks.
// Shared    dynamic: of linear maps 8 x [32][34] f64 and the rows' moments [8][32][2]; of expanded queries and summaries [W] f64 and
//           less besides.
#include "head.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;

struct Phase {
    int kind, items, first, ends;
    const void* in[8];
    void* out[3];
    int n[12];
    double factors[2];
    // What to ask for ahead: weights, and their bytes.
    const void* weights;
    size_t weight_bytes;
};
enum Kind { MEANS, LEXICAL, PRIOR, LINEAR, SUMMARY, CONVERSE, EXPAND, COMBINE, FEATURES, LOGITS };

struct Shared {
    double parts[WARPS];
    float tops[WARPS];
    bool is_last;
    double* wide;
};

// Divides the sums of spans by their numbers of rows. Item: a span.
__device__ __noinline__ void means(double* sums, const int* rows, int width, int pitch, int item) {
    double2* row = (double2*)(sums + (size_t)item * pitch);
    const double count = rows[item];
#pragma unroll 8
    for (int i = threadIdx.x; i < width / 2; i += THREADS) row[i] = make_double2(row[i].x / count, row[i].y / count);
}

// x[option] = mean of the table's rows of its tokens, H a multiple of 8; starts has one entry more than options. Item: an option.
__device__ __noinline__ void lexical(const bf16* table, const int* ids, const int* starts, double* x, int width, int pitch,
                                        int item) {
    const int first = starts[item], end = starts[item + 1];
    for (int i = threadIdx.x * 8; i < width; i += THREADS * 8) {
        double sum[8] = {};
#pragma unroll 4
        for (int at = first; at < end; at++) {
            const uint4 v = *(const uint4*)(table + (size_t)ids[at] * width + i);
            sum[0] += low_half(v.x), sum[1] += high_half(v.x), sum[2] += low_half(v.y), sum[3] += high_half(v.y);
            sum[4] += low_half(v.z), sum[5] += high_half(v.z), sum[6] += low_half(v.w), sum[7] += high_half(v.w);
        }
        double2* to = (double2*)(x + (size_t)item * pitch + i);
#pragma unroll
        for (int j = 0; j < 4; j++) to[j] = make_double2(sum[2 * j] / (end - first), sum[2 * j + 1] / (end - first));
    }
}

// prior[option] = scale * unit(x) . unit(q + g), where q is the row of the option's question. Item: an option.
__device__ __noinline__ void prior(const double* x, const double* questions, const int* question_of, const double* last,
                                      double* prior, int width, int pitch, double scale, int item, Shared& shared) {
    const double* row = x + (size_t)item * pitch;
    const double* question = questions + (size_t)question_of[item] * pitch;
    double xx = 0, aa = 0, xa = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < width; i += THREADS) {
        const double a = question[i] + last[i], v = row[i];
        xx += v * v, aa += a * a, xa += v * a;
    }
    xx = block_sum_f64(xx, shared.parts), aa = block_sum_f64(aa, shared.parts), xa = block_sum_f64(xa, shared.parts);
    if (threadIdx.x == 0) prior[item] = scale * (xa / (fmax(sqrt(xx), 1e-12) * fmax(sqrt(aa), 1e-12)));
}

// d[16][8] += a[16][16] b[16][8]. Lane l has of d: rows l / 4 (d[0], d[1]) and 8 more (d[2], d[3]), columns 2 (l % 4) and the next;
// of a: the same two rows, of b: column l / 4, both at four of k, where lanes with the same l % 4 have the same four.
__device__ __forceinline__ void mma_f64(double (&d)[4], const double (&a)[2][8], const double (&b)[8], int k) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, {%0,%1,%2,%3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0][k]), "d"(a[1][k]), "d"(a[0][k + 1]), "d"(a[1][k + 1]), "d"(a[0][k + 2]), "d"(a[1][k + 2]), "d"(a[0][k + 3]),
          "d"(a[1][k + 3]), "d"(b[k]), "d"(b[k + 1]), "d"(b[k + 2]), "d"(b[k + 3]));
#else
#pragma unroll
    for (int i = k; i < k + 4; i++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                : "+d"(d[2 * half]), "+d"(d[2 * half + 1]) : "d"(a[half][i]), "d"(b[i]));
#endif
}
// Eight weights, as they lie in the file.
__device__ __forceinline__ void eight(const bf16* at, float (&w)[8]) {
    const uint4 v = *(const uint4*)at;
    w[0] = low_half(v.x), w[1] = high_half(v.x), w[2] = low_half(v.y), w[3] = high_half(v.y);
    w[4] = low_half(v.z), w[5] = high_half(v.z), w[6] = low_half(v.w), w[7] = high_half(v.w);
}
__device__ __forceinline__ void eight(const float* at, float (&w)[8]) {
    const float4 a = ((const float4*)at)[0], b = ((const float4*)at)[1];
    w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w, w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
}

// A linear map: out[m][n] = add[m][n] + act(bias[n] + sum over k of x[x_rows[m]][group(n)][k] w[n][k]), where x may be normed
// first. Weights [N, K] lie in rows of w_pitch, a multiple of 32 filled with zeros. Columns come in groups of `group` with a part
// of x each, x_group apart; x_rows, norm, bias and add may be null. `act` 1 is GELU.
// A norm's mean and 1 / deviation are factors of a whole row, so they join after the sum: with its weight v and bias c, and
// e[n] = sum of v[k] w[n][k] and o[n] = bias[n] + sum of c[k] w[n][k], which are known beforehand, the value is
// (sum of x[k] v[k] w[n][k] - mean e[n]) / deviation + o[n].
// Item: a tile of 8 R rows and 16 C columns of a group, of one split of K of k_split, a multiple of 256.
// Sum order: warp w of a split adds its blocks w, w + 8, ... of 32 of K by mma of f64, then the warps' sums are added in order,
// then those of the splits: the last block of a tile to come does it, whichever that is. `tickets` [tiles] is zero before and
// after; `partial` has room for all tiles of all splits, 1088 values each.
constexpr int TILE_VALUES = 1024 + 64;
struct Map {
    const double* x;
    const int* x_rows;
    const void* w;
    const float* norm;
    const double* folded;  // e, then o
    const float* bias;
    const double* add;
    double* out;
    double* partial;
    unsigned* tickets;
    int x_pitch, x_group, w_pitch, out_pitch, m, n, k, group, act, k_split, splits;
};
// Sizes of the phase: x_pitch, x_group, out_pitch, m, n, k, group, act, k_split, splits.
template <class T, int R, int C> __device__ __forceinline__ void linear(const Phase& p, int item, Shared& shared) {
    const int* size = p.n;
    const Map map = {(const double*)p.in[0], (const int*)p.in[1], p.in[2], (const float*)p.in[3], (const double*)p.in[4],
                     (const float*)p.in[5], (const double*)p.in[6], (double*)p.out[0], (double*)p.out[1], (unsigned*)p.out[2],
                     size[0], size[1], (size[5] + 31) / 32 * 32, size[2], size[3], size[4], size[5], size[6], size[7], size[8], size[9]};
    constexpr int ROWS = 8 * R, COLUMNS = 16 * C, PITCH = COLUMNS + 2, VALUES = ROWS * COLUMNS;
    double* sums = shared.wide;
    double* moments = sums + WARPS * ROWS * PITCH;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    // Of most maps there is one group, one tile of rows, one split.
    const int tiles = (map.group + COLUMNS - 1) / COLUMNS, across = map.n == map.group ? tiles : map.n / map.group * tiles;
    const int all = map.m <= ROWS ? across : across * ((map.m + ROWS - 1) / ROWS);
    const int split = map.splits == 1 ? 0 : item / all, tile = item - split * all;
    const int row_tile = map.m <= ROWS ? 0 : tile / across, column_tile = tile - row_tile * across;
    const int group = map.n == map.group ? 0 : column_tile / tiles, first = (column_tile - group * tiles) * COLUMNS;
    const int m0 = row_tile * ROWS, rows = min(map.m - m0, ROWS), end = min(map.k, (split + 1) * map.k_split);
    const T* w[C][2];
    const double* x[R];
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int column = min(first + c * 16 + half * 8 + lane / 4, map.group - 1);
            w[c][half] = (const T*)map.w + (size_t)(group * map.group + column) * map.w_pitch;
        }
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int row = min(m0 + r * 8 + lane / 4, map.m - 1);
        x[r] = map.x + (size_t)(map.x_rows ? map.x_rows[row] : row) * map.x_pitch + (size_t)group * map.x_group;
    }
    // What joins the sum of a value later. Of few rows a thread has one value at most, so it asks for that first.
    struct Rest {
        bool there;
        size_t to;
        double shift, slope, add;
    };
    auto rest = [&](int v) {
        const int row = v / COLUMNS, at = first + v % COLUMNS, column = group * map.group + at;
        Rest rest = {row < rows && at < map.group, (size_t)(m0 + row) * map.out_pitch + column, 0, 0, 0};
        if (!rest.there) return rest;
        if (map.norm) rest.slope = map.folded[column], rest.shift = map.folded[map.n + column];
        else if (map.bias) rest.shift = map.bias[column];
        if (map.add) rest.add = map.add[rest.to];
        return rest;
    };
    Rest early;
    if (R == 1) early = rest(threadIdx.x);
    const bool odd = map.k % 8 != 0;  // what lies behind such a row is anything
    double d[R][C][4] = {}, sum_x[R] = {}, sum_xx[R] = {};
#pragma unroll(R == 1 ? 4 / C : 1)
    for (int block = split * map.k_split + warp * 32; block < end; block += WARPS * 32) {
        const int k = block + (lane & 3) * 8;
        float weights[C][2][8];
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int half = 0; half < 2; half++) eight(w[c][half] + k, weights[c][half]);
        double left[R][8];
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r * 8 >= rows) break;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const double2 two = k < map.k ? *(const double2*)(x[r] + k + 2 * i) : make_double2(0, 0);
                left[r][2 * i] = two.x, left[r][2 * i + 1] = two.y;
            }
            if (odd)
#pragma unroll
                for (int i = 0; i < 8; i++) left[r][i] = k + i < map.k ? left[r][i] : 0.0;
        }
        if (map.norm) {
            float v[8] = {};
            if (k < map.k) eight(map.norm + k, v);
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (r * 8 >= rows) break;
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum_x[r] += left[r][i], sum_xx[r] += left[r][i] * left[r][i], left[r][i] *= v[i];
            }
        }
#pragma unroll
        for (int c = 0; c < C; c++) {
            double right[2][8];
#pragma unroll
            for (int i = 0; i < 16; i++) right[i / 8][i % 8] = weights[c][i / 8][i % 8];
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (r * 8 >= rows) break;
                mma_f64(d[r][c], right, left[r], 0);
                mma_f64(d[r][c], right, left[r], 4);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[(warp * ROWS + r * 8 + 2 * (lane & 3) + e % 2) * PITCH + c * 16 + e / 2 * 8 + lane / 4] = d[r][c][e];
        if (!map.norm) continue;
#pragma unroll
        for (int distance = 2; distance; distance >>= 1)
            sum_x[r] += __shfl_xor_sync(~0u, sum_x[r], distance), sum_xx[r] += __shfl_xor_sync(~0u, sum_xx[r], distance);
        double* to = moments + 2 * (warp * ROWS + r * 8 + lane / 4);
        if ((lane & 3) == 0) to[0] = sum_x[r], to[1] = sum_xx[r];
    }
    __syncthreads();
    // The warps' sums, in order, of values and, behind them, of the rows' moments; those of splits meet in memory.
    double* part = map.partial + (size_t)tile * TILE_VALUES;
    const size_t pitch = (size_t)all * TILE_VALUES;
    auto place = [&](int v) { return v < VALUES ? sums + v / COLUMNS * PITCH + v % COLUMNS : moments + v - VALUES; };
    auto sum_of = [&](int v) {
        const double* at = place(v);
        const int step = v < VALUES ? ROWS * PITCH : 2 * ROWS;
        double sum = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum += at[i * step];
        return sum;
    };
    const int moments_too = VALUES + (map.norm ? 2 * ROWS : 0);
    if (map.splits > 1) {
#pragma unroll 1
        for (int v = threadIdx.x; v < moments_too; v += THREADS) part[split * pitch + v] = sum_of(v);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) shared.is_last = atomicAdd(map.tickets + tile, 1u) == map.splits - 1;
        __syncthreads();
        if (!shared.is_last) return;
        __threadfence();
        if (threadIdx.x == 0) map.tickets[tile] = 0;
    }
#pragma unroll 1
    for (int v = threadIdx.x; v < moments_too; v += THREADS) {
        double sum = 0;
        if (map.splits == 1) sum = sum_of(v);
        else
            for (int s = 0; s < map.splits; s++) sum += __ldcg(part + s * pitch + v);
        // Each place is the first warp's alone, and the same thread's as before.
        *place(v) = sum;
    }
    if (map.norm) {
        __syncthreads();
        if (threadIdx.x < ROWS) {
            double* row = moments + 2 * threadIdx.x;
            const double mean = row[0] / map.k;
            row[0] = mean, row[1] = rsqrt(fmax(row[1] / map.k - mean * mean, 0.0) + NORM_EPS);
        }
        __syncthreads();
    }
#pragma unroll 1
    for (int v = threadIdx.x; v < VALUES; v += THREADS) {
        const Rest more = R == 1 ? early : rest(v);
        if (!more.there) continue;
        double y = *place(v);
        const double* form = moments + 2 * (v / COLUMNS);
        y = map.norm ? (y - form[0] * more.slope) * form[1] + more.shift : y + more.shift;
        if (map.act == 1) y = 0.5 * y * (1.0 + erf(y * 0.70710678118654752440));
        map.out[more.to] = y + more.add;
    }
}
// Eights of rows times 8 and sixteens of columns of its tiles follow.
template <class T> __device__ __forceinline__ void linear_of(const Phase& p, int item, Shared& shared) {
    const int shape = p.n[10];
    if (shape == 4 * 8 + 2) linear<T, 4, 2>(p, item, shared);
    else if (shape == 8 + 2) linear<T, 1, 2>(p, item, shared);
    else linear<T, 1, 1>(p, item, shared);
}

// Mean and 1 / deviation of a row.
__device__ __forceinline__ double2 row_form(const double* x, int width, Shared& shared) {
    double sum = 0, squares = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < width; i += THREADS) sum += x[i];
    const double mean = block_sum_f64(sum, shared.parts) / width;
#pragma unroll 8
    for (int i = threadIdx.x; i < width; i += THREADS) squares += (x[i] - mean) * (x[i] - mean);
    return make_double2(mean, rsqrt(block_sum_f64(squares, shared.parts) / width + NORM_EPS));
}

// f = b + LayerNorm(s) + type + global, where s = sum of softmax(r . b / sqrt(W)) r over the question's own options: `list` has
// first option, options, kind, unused of each question; scores has room for all options. b lies in f. Item: a question.
__device__ __noinline__ void summary(const double* options, const int4* list, const float* weight, const float* bias,
                                        const float* types, const double* global, double* scores, double* f, int width, int pitch,
                                        int item, Shared& shared) {
    const int4 question = list[item];
    double *b = f + (size_t)item * pitch, *s = shared.wide;
    const double* r = options + (size_t)question.x * pitch;
    scores += question.x;
    const double root = sqrt((double)width);
    for (int o = threadIdx.x >> 5; o < question.y; o += WARPS) {
        double sum = 0;
#pragma unroll 8
        for (int i = threadIdx.x & 31; i < width; i += 32) sum += r[(size_t)o * pitch + i] * b[i];
        sum = warp_sum_f64(sum);
        if ((threadIdx.x & 31) == 0) scores[o] = sum / root;
    }
    __syncthreads();
    float top = -INFINITY;
    for (int o = threadIdx.x; o < question.y; o += THREADS) top = fmaxf(top, (float)scores[o]);
    top = block_max(top, shared.tops);
    double sum = 0;
    for (int o = threadIdx.x; o < question.y; o += THREADS) scores[o] = exp(scores[o] - top), sum += scores[o];
    sum = block_sum_f64(sum, shared.parts);
    for (int i = threadIdx.x; i < width; i += THREADS) {
        double mixed = 0;
#pragma unroll 4
        for (int o = 0; o < question.y; o++) mixed += scores[o] / sum * r[(size_t)o * pitch + i];
        s[i] = mixed;
    }
    // Each thread reads what it wrote itself.
    const double2 form = row_form(s, width, shared);
    for (int i = threadIdx.x; i < width; i += THREADS)
        b[i] += (s[i] - form.x) * form.y * weight[i] + bias[i] + types[question.z * width + i] + global[i];
}

// Attention of few rows over one another: qkv [n, qkv_pitch] has queries, keys and values side by side, each `width`.
// Item: a head of a row. A warp has a key at a time; keys go in blocks of 256, in order.
__device__ __noinline__ void converse(const double* qkv, double* out, int rows, int heads, int width, int qkv_pitch, int pitch,
                                         double scale, int item, Shared& shared) {
    double* weights = shared.wide;
    const int head = item % heads, head_width = width / heads, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const double* q = qkv + (size_t)(item / heads) * qkv_pitch + head * head_width;
    const double *keys = qkv + width + head * head_width, *values = keys + width;
    // The scores of a block of keys, in `weights`.
    auto score = [&](int first) {
        __syncthreads();
        for (int i = warp; i < min(rows - first, THREADS); i += WARPS) {
            double sum = 0;
            for (int d = lane; d < head_width; d += 32) sum += q[d] * keys[(size_t)(first + i) * qkv_pitch + d];
            sum = warp_sum_f64(sum);
            if (lane == 0) weights[i] = sum * scale;
        }
        __syncthreads();
    };
    float top = -INFINITY;
    for (int first = 0; first < rows; first += THREADS) {
        score(first);
        if (first + threadIdx.x < rows) top = fmaxf(top, (float)weights[threadIdx.x]);
    }
    top = block_max(top, shared.tops);
    // Columns of a head that a thread mixes: its own and every 256th more.
    for (int c = threadIdx.x; c - (int)threadIdx.x < head_width; c += THREADS) {
        double mixed = 0, sum = 0;
        for (int first = 0; first < rows; first += THREADS) {
            // One block of keys still has its scores.
            if (rows > THREADS || c >= THREADS) score(first);
            const double weight = first + threadIdx.x < rows ? exp(weights[threadIdx.x] - top) : 0.0;
            __syncthreads();
            weights[threadIdx.x] = weight;
            __syncthreads();
            sum += weight;
            if (c < head_width)
#pragma unroll 8
                for (int i = 0; i < min(rows - first, THREADS); i++) mixed += weights[i] * values[(size_t)(first + i) * qkv_pitch + c];
        }
        sum = block_sum_f64(sum, shared.parts);
        if (c < head_width) out[(size_t)(item / heads) * pitch + head * head_width + c] = mixed / sum;
    }
}

// The power of two that brings a maximum to 2^13 .. 2^14; 1 for zero and for what is not finite.
__device__ __forceinline__ int lift(float max) {
    if (!(max > 0.0f) || isinf(max)) return 0;
    return min(13 - ilogbf(max), 100);
}

// u of pairs: u[c] = scale * norm[c] * sum over the head's d of q[d] w_key[d][c], in two parts and scaled by a power of two, of
// which (2^-up / MEMORY_SCALE, sum of u) goes to `scales`. norm may be null. `queries` [count, pitch]. The width is a multiple
// of 4, at most 2048: a thread has four columns and four 1024 on. Sizes of the phase: count, heads, width, w_pitch, pitch, Q.
// Item: a head of Q queries.
template <class T, int Q> __device__ __noinline__ void expand(const Phase& p, int item, Shared& shared) {
    const T* keys = (const T*)p.in[1];
    const float* norm = (const float*)p.in[2];
    double2* scales = (double2*)p.out[2];
    const int count = p.n[0], heads = p.n[1], width = p.n[2], w_pitch = p.n[3], pitch = p.n[4];
    const int head = item % heads, first = item / heads * Q, head_width = width / heads;
    const double *queries = (const double*)p.in[0] + head * head_width, scale = p.factors[0];
    double* q = shared.wide;
    for (int i = threadIdx.x; i < Q * head_width; i += THREADS) {
        const int query = i / head_width, row = first + query;
        q[i] = row < count ? queries[(size_t)row * pitch + i - query * head_width] : 0.0;
    }
    __syncthreads();
    double u[2][Q][4] = {};
#pragma unroll
    for (int part = 0; part < 2; part++) {
        const int c = part * THREADS * 4 + threadIdx.x * 4;
        if (c >= width) break;
        const T* from = keys + (size_t)head * head_width * w_pitch + c;
#pragma unroll 8
        for (int d = 0; d < head_width; d++) {
            float w[4];
            load_4(from + (size_t)d * w_pitch, w);
#pragma unroll
            for (int i = 0; i < Q; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) u[part][i][j] += q[i * head_width + d] * w[j];
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const double factor = norm ? scale * norm[c + j] : scale;
#pragma unroll
            for (int i = 0; i < Q; i++) u[part][i][j] *= factor;
        }
    }
#pragma unroll
    for (int i = 0; i < Q; i++) {
        if (first + i >= count) return;
        const size_t pair = (size_t)(first + i) * heads + head;
        float top = 0;
        double sum = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) top = fmaxf(top, fabsf((float)u[j / 4][i][j % 4])), sum += u[j / 4][i][j % 4];
        const int up = lift(block_max(top, shared.tops));
        sum = block_sum_f64(sum, shared.parts);
        const double factor = ldexp(1.0, up);
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const int c = part * THREADS * 4 + threadIdx.x * 4;
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = (float)(u[part][i][j] * factor);
            if (c < pitch) store_parts_4((uint16_t*)p.out[0], (uint16_t*)p.out[1], pair * pitch + c, x);
        }
        if (threadIdx.x == 0) scales[pair] = make_double2(ldexp(1.0, -up) / MEMORY_SCALE, sum);
    }
}

// 2^x of a whole number that is a difference of marks.
__device__ __forceinline__ double power_f64(float x) {
    const int whole = (int)x;
    return whole < -1022 ? 0.0 : __hiloint2double((whole + 1023) << 20, 0);
}

// The mixed memory of pairs from partial sums [splits, pairs, pitch] of weighted rows, each of `split_groups` groups, and the
// groups' marks and sums (see `soften` in head.cuh): their sum over that of p, plus the mean of the rows' means; if norm is not
// null times norm plus norm_bias. A warp has a pair: a lane's groups count in order, then the lanes; splits in order.
// Item: eight pairs, and of them 256 columns. Sizes of the phase: pairs, groups, split_groups, splits, width, pitch.
__device__ __noinline__ void combine(const Phase& p, int item) {
    const int pairs = p.n[0], groups = p.n[1], split_groups = p.n[2], splits = p.n[3], width = p.n[4], pitch = p.n[5];
    const int chunks = (width + 255) / 256, chunk = item % chunks, lane = threadIdx.x & 31;
    const int pair = item / chunks * WARPS + (threadIdx.x >> 5);
    if (pair >= pairs) return;
    const float2* marks = (const float2*)p.in[1] + (size_t)pair * groups;
    const double2* sums = (const double2*)p.in[2] + (size_t)pair * groups;
    const float *norm = (const float*)p.in[3], *norm_bias = (const float*)p.in[4];
    const float* partial = (const float*)p.in[0] + (size_t)pair * pitch;
    float top = -INFINITY;
    for (int i = lane; i < groups; i += 32) top = fmaxf(top, marks[i].x);
#pragma unroll
    for (int distance = 16; distance; distance >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, distance));
    double sum = 0, means = 0;
    for (int i = lane; i < groups; i += 32) {
        const double factor = power_f64(marks[i].x - top);
        const double2 both = sums[i];
        sum += both.x * factor, means += both.y * factor;
    }
    sum = warp_sum_f64(sum), means = warp_sum_f64(means);
    // A lane has four columns and four 128 on; it knows the factor of one split, of as many as there are lanes at one time.
    const int c = chunk * 256 + lane * 4;
    double mixed[2][4] = {};
    for (int s0 = 0; s0 < splits; s0 += 32) {
        const int from = (s0 + lane) * split_groups, to = min(groups, from + split_groups);
        float mark = -INFINITY;
        for (int i = from; i < to; i++) mark = fmaxf(mark, marks[i].y);
        const double own = power_f64(mark - top);
#pragma unroll 8
        for (int s = s0; s < min(splits, s0 + 32); s++) {
            const double factor = __shfl_sync(~0u, own, s - s0);
#pragma unroll
            for (int part = 0; part < 2; part++) {
                float x[4] = {};
                if (c + part * 128 < width) load_4(partial + (size_t)s * pairs * pitch + c + part * 128, x);
#pragma unroll
                for (int j = 0; j < 4; j++) mixed[part][j] += x[j] * factor;
            }
        }
    }
    const double factor = 1.0 / ((double)MEMORY_SCALE * (1 << WEIGHT_BITS) * sum), shift = means / sum;
#pragma unroll
    for (int part = 0; part < 2; part++) {
        const int at = c + part * 128;
        if (at >= width) break;
        double* out = (double*)p.out[0] + (size_t)pair * pitch + at;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const double y = mixed[part][j] * factor + shift;
            out[j] = norm ? y * norm[at + j] + norm_bias[at + j] : y;
        }
    }
}

// [f, o, f o, |f - o|] of options, [4 width] in rows of 4 pitch, each of the four from a multiple of width, where f and o are
// normed rows of the option's question and of the option; and their cosines. Item: an option.
__device__ __noinline__ void features(const double* options, const double* fields, const int* question_of,
                                         const float* option_weight, const float* option_bias, const float* field_weight,
                                         const float* field_bias, double* features, double* cosines, int width, int pitch, int item,
                                         Shared& shared) {
    const double *o = options + (size_t)item * pitch, *f = fields + (size_t)question_of[item] * pitch;
    const double2 o_form = row_form(o, width, shared), f_form = row_form(f, width, shared);
    double* to = features + (size_t)item * 4 * pitch;
    double ff = 0, oo = 0, fo = 0;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        const double a = (f[i] - f_form.x) * f_form.y * field_weight[i] + field_bias[i];
        const double b = (o[i] - o_form.x) * o_form.y * option_weight[i] + option_bias[i];
        to[i] = a, to[width + i] = b, to[2 * width + i] = a * b, to[3 * width + i] = fabs(a - b);
        ff += a * a, oo += b * b, fo += a * b;
    }
    ff = block_sum_f64(ff, shared.parts), oo = block_sum_f64(oo, shared.parts), fo = block_sum_f64(fo, shared.parts);
    if (threadIdx.x == 0) cosines[item] = fo / (fmax(sqrt(ff), 1e-8) * fmax(sqrt(oo), 1e-8));
}

// logit = prior + gate (joint cos + residual), where the residual is a linear map of one column. Item: an option.
template <class T>
__device__ __noinline__ void logits(const double* inner, const T* weight, const float* bias, const double* priors,
                                       const double* cosines, float* out, int inputs, int pitch, double gate, double joint, int item,
                                       Shared& shared) {
    double sum = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < inputs; i += THREADS) {
        float w;
        if constexpr (sizeof(T) == 2) w = widen(weight[i]);
        else w = weight[i];
        sum += inner[(size_t)item * pitch + i] * w;
    }
    sum = block_sum_f64(sum, shared.parts);
    if (threadIdx.x == 0) out[item] = (float)(priors[item] + gate * (joint * cosines[item] + (sum + bias[0])));
}

template <class T> __device__ __forceinline__ void expand_of(const Phase& p, int item, Shared& shared) {
    if (p.n[5] == 1) expand<T, 1>(p, item, shared);
    else expand<T, 2>(p, item, shared);
}
template <class T> __device__ __forceinline__ void logits_of(const Phase& p, int item, Shared& shared) {
    logits((const double*)p.in[0], (const T*)p.in[1], (const float*)p.in[2], (const double*)p.in[3], (const double*)p.in[4],
           (float*)p.out[0], p.n[0], p.n[1], p.factors[0], p.factors[1], item, shared);
}

// An item of a phase.
__device__ __forceinline__ void run(const Phase& p, int item, Shared& shared) {
    auto f64 = [&](int i) { return (const double*)p.in[i]; };
    auto f32 = [&](int i) { return (const float*)p.in[i]; };
    auto i32 = [&](int i) { return (const int*)p.in[i]; };
    auto out = [&](int i) { return (double*)p.out[i]; };
    const int* n = p.n;
    switch (p.kind) {
    case MEANS: return means(out(0), i32(0), n[0], n[1], item);
    case LEXICAL: return lexical((const bf16*)p.in[0], i32(1), i32(2), out(0), n[0], n[1], item);
    case PRIOR: return prior(f64(0), f64(1), i32(2), f64(3), out(0), n[0], n[1], p.factors[0], item, shared);
    case LINEAR: return n[11] ? linear_of<float>(p, item, shared) : linear_of<bf16>(p, item, shared);
    case SUMMARY:
        return summary(f64(0), (const int4*)p.in[1], f32(2), f32(3), f32(4), f64(5), out(0), out(1), n[0], n[1], item, shared);
    case CONVERSE: return converse(f64(0), out(0), n[0], n[1], n[2], n[3], n[4], p.factors[0], item, shared);
    case EXPAND: return n[6] ? expand_of<float>(p, item, shared) : expand_of<bf16>(p, item, shared);
    case COMBINE: return combine(p, item);
    case FEATURES:
        return features(f64(0), f64(1), i32(2), f32(3), f32(4), f32(5), f32(6), out(0), out(1), n[0], n[1], item, shared);
    case LOGITS: return n[2] ? logits_of<float>(p, item, shared) : logits_of<bf16>(p, item, shared);
    }
}

// What all warps but the first do while that waits: thread `helper` asks for its share of a phase's weights.
constexpr int HELPERS = THREADS - 32;
__device__ __forceinline__ void ask_ahead(const Phase& p, int helper) {
    const char* from = (const char*)p.weights;
    const size_t step = (size_t)gridDim.x * HELPERS * 128;
    for (size_t at = (size_t)(blockIdx.x * HELPERS + helper) * 128; at < p.weight_bytes; at += step)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
}

// Phases first .. end of a list of `all`.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    head_finish(const Phase* list, int first, int end, int all, unsigned* gate) {
    extern __shared__ __align__(16) double wide[];
    __shared__ Phase phases[2];
    __shared__ Shared shared;
    const int helper = (int)threadIdx.x - 32;
    // A phase for all threads to see, and the weights of one.
    auto bring = [&](int i) {
        for (int word = helper; word < (int)(sizeof(Phase) / 8); word += HELPERS)
            ((uint64_t*)&phases[i & 1])[word] = ((const uint64_t*)(list + i))[word];
    };
    if (threadIdx.x == 0) shared.wide = wide;
    if (helper >= 0) {
        bring(first);
        for (int i = first; i < min(first + 2, all); i++) ask_ahead(list[i], helper);
    }
    __syncthreads();
    unsigned stages = 0;
    for (int i = first;;) {
        const Phase& p = phases[i & 1];
        const int blocks = gridDim.x, shift = p.first % blocks;
        for (int item = blockIdx.x < shift ? blockIdx.x + blocks - shift : blockIdx.x - shift; item < p.items; item += blocks) {
            run(p, item, shared);
            __syncthreads();
        }
        if (++i == end) break;
        const bool ends = p.ends;
        stages += ends;
        if (ends) {
            __syncthreads();
            if (threadIdx.x == 0) gate_come(gate);
        }
        if (helper >= 0) {
            bring(i);
            if (i + 1 < all) ask_ahead(list[i + 1], helper);
        }
        if (ends && threadIdx.x == 0) gate_wait(gate, stages * gridDim.x);
        __syncthreads();
    }
    if (threadIdx.x == 0) gate_leave(gate);
}
