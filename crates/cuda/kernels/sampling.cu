// The next token of rows of logits: adjusted, cut by top_k, top_p and min_p, and drawn; descant_model::choice, on the device.
//
// Shapes    logits [rows, pitch] bf16, of which `width` count, pitch a multiple of 8; settings [rows]; changes, each row's ids
//           ascending; counts [rows][65536]; states [rows]; sums [rows][spans]; ids [rows].
// Grid      prepare_rows and weigh_rows: blocks of 256 threads over a row x rows; scan_rows of 512; cut_rows and draw_rows: one
//           block of 1024 threads a row. A span is 2048 tokens, one block's of weigh_rows; one of scan_rows has 16,384.
// Weights   exp((logit - greatest) / temperature) in f64 as the host has it, then rounded to multiples of 2^-44. Every sum is one
//           of integers, below 2^63 for up to 2^19 tokens, so its order does not matter and atomics may make it: a row's token
//           does not depend on blocks, threads or other rows.
// Ranks     a logit's 32-bit key rises with it (-0 is +0; negative infinity is 0, no token). The cut is a key and the number of
//           tokens of that very key that are kept, the first by id.
// Shared    scan_rows 12 KB: counts of the bins where most logits are, so that memory is added to once a block and bin; cut_rows
//           13.5 KB: counts and weights of 1024 segments of 64 keys' upper halves, 64 bins of one segment; draw_rows 8.3 KB: a
//           span's logits.
// Result    the token's id; -1 if a logit is NaN or positive infinity, or the greatest adjusted one is not finite.
// Cost      a greedy row reads its logits twice, any other three times, from L2; a row that top_k or top_p cuts its 256 KB of
//           counts as well.
//
// prepare_rows  makes room: zeros what the next ones add to, computes the adjusted logits and takes their tokens out of the row
// scan_rows     the greatest key; how many tokens have each upper half of a key, which is a bf16 logit as a whole
// cut_rows      the key that top_k and top_p cut at: from 1024 segments to 64 bins to the lower halves that adjusted logits have
// weigh_rows    the weight of what is kept, span by span
// draw_rows     the span, then the token, in which the cumulative weight passes the number's share of the whole
#include "ptx.cuh"

constexpr int THREADS = 256, SPAN = 8 * THREADS;
constexpr int WIDE = 1024;  // threads of the kernels of one block a row
constexpr int BINS = 1 << 16, SEGMENTS = 1024, SEGMENT_BINS = BINS / SEGMENTS;
static_assert(SEGMENTS == WIDE && SPAN == 2 * WIDE, "a segment and two tokens a thread");
constexpr double ONE = 17592186044416.0;  // 2^44
constexpr int SCANNERS = 512, SCANNED = 32 * SCANNERS;  // threads of scan_rows, and tokens of one of its blocks
// Where most logits are: those from 2^-6 up to 2^6, and their negatives. Upper halves of keys.
constexpr uint32_t NEAR_BINS = 12 << 7, NEAR_POSITIVE = 0x8000 + (121 << 7), NEAR_NEGATIVE = 0x8000 - (133 << 7);

// What a row asks for; 48 bytes.
struct Settings {
    float temperature;       // above 0; 1 for a greedy row
    uint32_t top_k;          // 0: all; 1: greedy, and the rest does not matter
    uint32_t share, shift;   // top_p is share / 2^shift; share 0: all
    float min_p;
    uint32_t number[2];      // a random number times 2^53, lower half first
    int first, last;         // its changes: [first, last)
    int unused[3];
};
// A token whose logit is (logit + add) - subtract; 16 bytes. `value` is computed here.
struct Change {
    int id;
    float add, subtract, value;
};
struct State {
    uint32_t greatest;  // key
    uint32_t bad;       // whether a logit is NaN or positive infinity
    uint32_t cut, ties;
};
struct Sum {
    uint64_t weight;  // of the tokens above the cut
    uint64_t ties;    // tokens at the cut
};
static_assert(sizeof(Settings) == 48 && sizeof(Change) == 16 && sizeof(State) == 16 && sizeof(Sum) == 16, "as the host writes");

__device__ __forceinline__ uint32_t key_of(float x) {
    if (!(x > -INFINITY)) return 0;
    const uint32_t bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
// The key of the bf16 logit whose key has this upper half.
__device__ __forceinline__ uint32_t key_of_bin(uint32_t bin) { return bin << 16 | (bin & 0x8000u ? 0u : 0xffffu); }

// Logit j of eight.
__device__ __forceinline__ float eighth(const uint4& v, int j) {
    const uint32_t pair = j < 2 ? v.x : j < 4 ? v.y : j < 6 ? v.z : v.w;
    return j & 1 ? high_half(pair) : low_half(pair);
}

__device__ __forceinline__ double weight_of(float x, float greatest, float temperature) {
    return exp((double)(x - greatest) / (double)temperature);
}
__device__ __forceinline__ uint64_t fixed(double weight) { return __double2ull_rn(weight * ONE); }

// A row's state, once it is known; whether it has a token at all.
struct Chosen {
    float greatest, temperature, min_p;
    uint32_t cut, ties;
    bool any;

    __device__ __forceinline__ Chosen(const Settings& settings, const State& state) {
        greatest = value_of(state.greatest), temperature = settings.temperature, min_p = settings.min_p;
        any = !state.bad && state.greatest && greatest < INFINITY;
        cut = state.cut, ties = state.ties;
        if (settings.top_k == 1) cut = state.greatest, ties = 1;
        else if (ties && weight_of(value_of(cut), greatest, temperature) < (double)min_p) ties = 0;
    }
    // The weight of a token above the cut. Below e^-32 it rounds to nothing.
    __device__ __forceinline__ uint64_t weight(float x) const {
        if (x - greatest < -32.0f * temperature) return 0;
        const double w = weight_of(x, greatest, temperature);
        return w < (double)min_p ? 0 : fixed(w);
    }
    __device__ __forceinline__ void add(float x, uint64_t& sum, uint32_t& tied) const {
        const uint32_t key = key_of(x);
        if (key > cut) sum += weight(x);
        else if (key == cut && ties) tied++;
    }
    __device__ __forceinline__ uint64_t tie_weight() const {
        return ties ? fixed(weight_of(value_of(cut), greatest, temperature)) : 0;
    }
};

// The first of a row's changes whose id is not below one.
__device__ __forceinline__ int first_change(const Change* changes, int first, int last, int id) {
    while (first < last) {
        const int middle = (first + last) / 2;
        if (changes[middle].id < id) first = middle + 1;
        else last = middle;
    }
    return first;
}

// Sums over a block; every thread gets it.
__device__ __forceinline__ uint64_t block_sum(uint64_t x) {
    __shared__ uint64_t parts[32];
    const int lane = threadIdx.x & 31, warps = blockDim.x / 32;
#pragma unroll
    for (int distance = 16; distance; distance >>= 1) x += __shfl_xor_sync(~0u, x, distance);
    __syncthreads();
    if (lane == 0) parts[threadIdx.x >> 5] = x;
    __syncthreads();
    x = lane < warps ? parts[lane] : 0;
#pragma unroll
    for (int distance = 16; distance; distance >>= 1) x += __shfl_xor_sync(~0u, x, distance);
    return x;
}
// The sum of a thread's value and those before it.
__device__ __forceinline__ uint64_t block_scan(uint64_t x) {
    __shared__ uint64_t parts[32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x / 32;
#pragma unroll
    for (int distance = 1; distance < 32; distance <<= 1) {
        const uint64_t other = __shfl_up_sync(~0u, x, distance);
        if (lane >= distance) x += other;
    }
    __syncthreads();
    if (lane == 31) parts[warp] = x;
    __syncthreads();
    uint64_t before = lane < warps && lane < warp ? parts[lane] : 0;
#pragma unroll
    for (int distance = 16; distance; distance >>= 1) before += __shfl_xor_sync(~0u, before, distance);
    return x + before;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    prepare_rows(bf16* logits, const Settings* settings, Change* changes, uint32_t* counts, State* states, int pitch) {
    chain();
    const Settings own = settings[blockIdx.y];
    if (own.top_k > 1 || own.share) {
        uint4* bins = (uint4*)(counts + (size_t)blockIdx.y * BINS);
        for (int i = blockIdx.x * THREADS + threadIdx.x; i < BINS / 4; i += gridDim.x * THREADS) bins[i] = make_uint4(0, 0, 0, 0);
    }
    if (blockIdx.x) return;
    bool bad = false;
    for (int i = own.first + threadIdx.x; i < own.last; i += THREADS) {
        bf16* at = logits + (size_t)blockIdx.y * pitch + changes[i].id;
        const float x = widen(*at);
        bad |= !(x < INFINITY);
        changes[i].value = (x + changes[i].add) - changes[i].subtract;
        *at = 0xff80;  // negative infinity: from here on the change alone counts
    }
    const int any_bad = __syncthreads_or(bad);
    if (threadIdx.x == 0) states[blockIdx.y] = {0, (uint32_t)(any_bad != 0), 0, 0};
}

// Where a bin near the middle is counted in shared memory first; -1 for all others.
__device__ __forceinline__ int near_place(uint32_t bin) {
    if (bin - NEAR_POSITIVE < NEAR_BINS) return bin - NEAR_POSITIVE;
    return bin - NEAR_NEGATIVE < NEAR_BINS ? NEAR_BINS + bin - NEAR_NEGATIVE : -1;
}

extern "C" __global__ void __launch_bounds__(SCANNERS)
    scan_rows(const bf16* logits, const Settings* settings, const Change* changes, uint32_t* counts, State* states, int width,
              int pitch) {
    chain();
    __shared__ uint32_t near[2 * NEAR_BINS];
    const Settings own = settings[blockIdx.y];
    const bool counted = own.top_k > 1 || own.share;
    uint32_t* bins = counts + (size_t)blockIdx.y * BINS;
    if (counted)
        for (int i = threadIdx.x; i < 2 * NEAR_BINS; i += SCANNERS) near[i] = 0;
    __syncthreads();

    constexpr int EIGHTS = SCANNED / SCANNERS / 8;
    const int start = blockIdx.x * SCANNED + threadIdx.x * 8;
    uint4 v[EIGHTS];
#pragma unroll
    for (int i = 0; i < EIGHTS; i++) {
        const int at = start + i * SCANNERS * 8;
        if (at < width) v[i] = *(const uint4*)(logits + (size_t)blockIdx.y * pitch + at);
    }
    uint32_t greatest = 0;
    bool bad = false;
#pragma unroll
    for (int i = 0; i < EIGHTS; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (start + i * SCANNERS * 8 + j >= width) break;
            const float x = eighth(v[i], j);
            bad |= !(x < INFINITY);
            const uint32_t key = key_of(x);
            greatest = max(greatest, key);
            if (!counted || !key) continue;
            const int place = near_place(key >> 16);
            if (place < 0) atomicAdd(bins + (key >> 16), 1u);
            else atomicAdd(near + place, 1u);
        }
    }
    if (blockIdx.x == 0)
        for (int i = own.first + threadIdx.x; i < own.last; i += SCANNERS) greatest = max(greatest, key_of(changes[i].value));
    greatest = __reduce_max_sync(~0u, greatest);
    bad = __any_sync(~0u, bad);
    if ((threadIdx.x & 31) == 0) {
        atomicMax(&states[blockIdx.y].greatest, greatest);
        if (bad) atomicOr(&states[blockIdx.y].bad, 1u);
    }
    if (!counted) return;
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * NEAR_BINS; i += SCANNERS) {
        const uint32_t bin = i < NEAR_BINS ? NEAR_POSITIVE + i : NEAR_NEGATIVE + i - NEAR_BINS;
        if (near[i]) atomicAdd(bins + bin, near[i]);
    }
}

// Where a row is cut.
struct Cut {
    uint32_t key;    // 0: nowhere
    uint64_t above;  // the sum over greater keys
    uint64_t each;   // of a token of this key
};

// What cut_rows sees of its row. A token counts 1, or its weight.
struct Row {
    const uint32_t* bins;
    const Change* changes;
    int first, last;
    float greatest, temperature;

    template <bool WEIGHED> __device__ __forceinline__ uint64_t of(uint32_t key) const {
        return WEIGHED ? fixed(weight_of(value_of(key), greatest, temperature)) : 1;
    }
    // Of all bf16 logits with this upper half of a key.
    template <bool WEIGHED> __device__ __forceinline__ uint64_t of_bin(uint32_t bin) const {
        const uint32_t count = bins[bin];
        return count ? count * of<WEIGHED>(key_of_bin(bin)) : 0;
    }

    // The greatest key that the sum over it and all greater ones reaches `goal` at, which is above 0; `segments` has the sums of
    // all segments, the greatest keys first.
    template <bool WEIGHED, typename T> __device__ Cut find(const T* segments, uint64_t goal) const {
        __shared__ uint64_t parts[SEGMENT_BINS], base;
        __shared__ int place;
        if (threadIdx.x == 0) place = -1;
        const uint64_t own = segments[threadIdx.x], sum = block_scan(own);
        if (sum >= goal && sum - own < goal) place = threadIdx.x, base = sum - own;
        __syncthreads();
        if (place < 0) return {0, 0, 0};

        // The bins of that segment, the greatest keys first.
        const uint32_t segment = SEGMENTS - 1 - place, top = segment * SEGMENT_BINS + SEGMENT_BINS - 1;
        if (threadIdx.x < SEGMENT_BINS) parts[threadIdx.x] = of_bin<WEIGHED>(top - threadIdx.x);
        __syncthreads();
        for (int i = first + threadIdx.x; i < last; i += WIDE) {
            const uint32_t key = key_of(changes[i].value);
            if (key && key >> 22 == segment)
                atomicAdd((unsigned long long*)&parts[top - (key >> 16)], (unsigned long long)of<WEIGHED>(key));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint64_t before = base;
            int i = 0;
            while (before + parts[i] < goal) before += parts[i++];
            place = i, base = before;
        }
        __syncthreads();

        // In that bin all bf16 logits are one key; adjusted ones may be others.
        const uint32_t bin = top - place, plain = key_of_bin(bin);
        bool inside = false;
        for (int i = first + threadIdx.x; i < last; i += WIDE) inside |= key_of(changes[i].value) >> 16 == bin;
        uint32_t key = plain;
        uint64_t above = base;
        if (__syncthreads_or(inside)) {
            key = bin << 16;
            for (uint32_t bit = 0x8000; bit; bit >>= 1)
                if (base + inside_from<WEIGHED>(bin, key | bit) >= goal) key |= bit;
            above += key < (bin << 16 | 0xffffu) ? inside_from<WEIGHED>(bin, key + 1) : 0;
        }
        return {key, above, of<WEIGHED>(key)};
    }

    // The sum over a bin's keys from one on.
    template <bool WEIGHED> __device__ uint64_t inside_from(uint32_t bin, uint32_t from) const {
        uint64_t sum = threadIdx.x == 0 && key_of_bin(bin) >= from ? of_bin<WEIGHED>(bin) : 0;
        for (int i = first + threadIdx.x; i < last; i += WIDE) {
            const uint32_t key = key_of(changes[i].value);
            if (key >> 16 == bin && key >= from) sum += of<WEIGHED>(key);
        }
        return block_sum(sum);
    }

    // The weight of all keys above one.
    __device__ uint64_t weight_above(const unsigned long long* segments, uint32_t cut) const {
        const uint32_t segment = cut >> 22;
        uint64_t sum = threadIdx.x < SEGMENTS - 1 - segment ? segments[threadIdx.x] : 0;
        if (threadIdx.x < SEGMENT_BINS) {
            const uint32_t bin = segment * SEGMENT_BINS + threadIdx.x;
            if (key_of_bin(bin) > cut) sum += of_bin<true>(bin);
        }
        for (int i = first + threadIdx.x; i < last; i += WIDE) {
            const uint32_t key = key_of(changes[i].value);
            if (key >> 22 == segment && key > cut) sum += of<true>(key);
        }
        return block_sum(sum);
    }
};

extern "C" __global__ void __launch_bounds__(WIDE)
    cut_rows(const Settings* settings, const Change* changes, const uint32_t* counts, State* states) {
    chain();
    const Settings own = settings[blockIdx.x];
    const State state = states[blockIdx.x];
    if (own.top_k == 1 || (own.top_k == 0 && own.share == 0) || state.bad || state.greatest == 0) return;
    __shared__ uint32_t numbers[SEGMENTS];
    __shared__ unsigned long long weights[SEGMENTS];
    const Row row = {counts + (size_t)blockIdx.x * BINS, changes, own.first, own.last, value_of(state.greatest), own.temperature};
    if (!(row.greatest < INFINITY)) return;

    numbers[threadIdx.x] = 0, weights[threadIdx.x] = 0;
    __syncthreads();
    for (int i = own.first + threadIdx.x; i < own.last; i += WIDE) {
        const uint32_t key = key_of(changes[i].value);
        if (!key) continue;
        atomicAdd(&numbers[SEGMENTS - 1 - (key >> 22)], 1u);
        if (own.share) atomicAdd(&weights[SEGMENTS - 1 - (key >> 22)], (unsigned long long)row.of<true>(key));
    }
    // A warp adds every 32nd segment, two bins a lane: logits lie in a few segments side by side.
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    constexpr int AT_ONCE = 8;
    for (int i = 0; i < 32; i += AT_ONCE) {
        uint2 pairs[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            pairs[j] = *(const uint2*)(row.bins + (SEGMENTS - 1 - ((i + j) * 32 + warp)) * SEGMENT_BINS + 2 * lane);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (!__any_sync(~0u, pairs[j].x | pairs[j].y)) continue;
            const int segment = (i + j) * 32 + warp;
            const uint32_t bin = (SEGMENTS - 1 - segment) * SEGMENT_BINS + 2 * lane;
            uint64_t weight = 0;
            if (own.share && pairs[j].x) weight += pairs[j].x * row.of<true>(key_of_bin(bin));
            if (own.share && pairs[j].y) weight += pairs[j].y * row.of<true>(key_of_bin(bin + 1));
#pragma unroll
            for (int distance = 16; distance; distance >>= 1) weight += __shfl_xor_sync(~0u, weight, distance);
            const uint32_t number = __reduce_add_sync(~0u, pairs[j].x + pairs[j].y);
            if (lane == 0) {
                atomicAdd(&numbers[segment], number);
                if (own.share) atomicAdd(&weights[segment], (unsigned long long)weight);
            }
        }
    }
    __syncthreads();

    Cut cut = {0, 0, 0};
    uint64_t ties = 0;
    if (own.top_k) {
        cut = row.find<false>(numbers, own.top_k);
        if (cut.key) ties = own.top_k - cut.above;
    }
    if (own.share) {
        const uint64_t all = cut.key ? row.weight_above(weights, cut.key) + ties * row.of<true>(cut.key)
                                     : block_sum(weights[threadIdx.x]);
        // The least integer that is not below share / 2^shift of all.
        const unsigned __int128 product = (unsigned __int128)own.share * all, one = 1;
        const uint64_t goal = own.shift < 96 ? (uint64_t)((product + ((one << own.shift) - 1)) >> own.shift) : 1;
        __syncthreads();
        const Cut by_share = row.find<true>(weights, goal);
        // It is there: all that top_k kept reaches more than a share of itself.
        cut = by_share;
        ties = (goal - cut.above + cut.each - 1) / cut.each;
    }
    if (threadIdx.x == 0) states[blockIdx.x].cut = cut.key, states[blockIdx.x].ties = (uint32_t)ties;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    weigh_rows(const bf16* logits, const Settings* settings, const Change* changes, const State* states, Sum* sums, int width,
               int pitch) {
    chain();
    const Settings own = settings[blockIdx.y];
    const Chosen chosen(own, states[blockIdx.y]);
    if (!chosen.any) return;
    const int start = blockIdx.x * SPAN, at = start + threadIdx.x * 8;
    uint64_t sum = 0;
    uint32_t tied = 0;
    if (at < width) {
        const uint4 v = *(const uint4*)(logits + (size_t)blockIdx.y * pitch + at);
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (at + j < width) chosen.add(eighth(v, j), sum, tied);
    }
    const int first = first_change(changes, own.first, own.last, start);
    for (int i = first + threadIdx.x; i < own.last && changes[i].id < start + SPAN; i += THREADS)
        chosen.add(changes[i].value, sum, tied);
    const uint64_t weight = block_sum(sum), ties = block_sum(tied);
    if (threadIdx.x == 0) sums[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = {weight, ties};
}

extern "C" __global__ void __launch_bounds__(WIDE)
    draw_rows(const bf16* logits, const Settings* settings, const Change* changes, const State* states, const Sum* sums, int* ids,
              int width, int pitch, int spans) {
    chain();
    const Settings own = settings[blockIdx.x];
    const Chosen chosen(own, states[blockIdx.x]);
    if (!chosen.any) {
        if (threadIdx.x == 0) ids[blockIdx.x] = -1;
        return;
    }
    const uint64_t each = chosen.tie_weight(), most = chosen.ties;
    const auto reached = [&](uint64_t weight, uint64_t ties) { return weight + min(ties, most) * each; };

    // The span.
    __shared__ float values[SPAN];
    __shared__ uint64_t all, weight_before, ties_before;
    __shared__ int place;
    Sum sum = {0, 0};
    if ((int)threadIdx.x < spans) sum = sums[(size_t)blockIdx.x * spans + threadIdx.x];
    uint64_t weight = block_scan(sum.weight), ties = block_scan(sum.ties);
    if (threadIdx.x == WIDE - 1) all = reached(weight, ties);
    __syncthreads();
    const uint64_t number = (uint64_t)own.number[1] << 32 | own.number[0];
    const uint64_t goal = (uint64_t)((unsigned __int128)number * all >> 53);
    if (reached(weight, ties) > goal && reached(weight - sum.weight, ties - sum.ties) <= goal)
        place = threadIdx.x, weight_before = weight - sum.weight, ties_before = ties - sum.ties;
    __syncthreads();

    // Its logits, two a thread, adjusted.
    const int start = place * SPAN, at = start + 2 * threadIdx.x;
    uint32_t pair = 0xff80ff80u;
    if (at < width) pair = *(const uint32_t*)(logits + (size_t)blockIdx.x * pitch + at);
    values[2 * threadIdx.x] = low_half(pair);
    values[2 * threadIdx.x + 1] = at + 1 < width ? high_half(pair) : -INFINITY;
    __syncthreads();
    const int first = first_change(changes, own.first, own.last, start);
    for (int i = first + threadIdx.x; i < own.last && changes[i].id < start + SPAN; i += WIDE)
        values[changes[i].id - start] = changes[i].value;
    __syncthreads();

    // The token.
    uint64_t weights[2] = {0, 0};
    uint32_t tied[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 2; j++) chosen.add(values[2 * threadIdx.x + j], weights[j], tied[j]);
    weight = weight_before + block_scan(weights[0] + weights[1]);
    ties = ties_before + block_scan(tied[0] + tied[1]);
    const uint64_t weight_0 = weight - weights[0] - weights[1], ties_0 = ties - tied[0] - tied[1];
    const uint64_t weight_1 = weight - weights[1], ties_1 = ties - tied[1];
    if (reached(weight_1, ties_1) > goal && reached(weight_0, ties_0) <= goal) ids[blockIdx.x] = at;
    if (reached(weight, ties) > goal && reached(weight_1, ties_1) <= goal) ids[blockIdx.x] = at + 1;
}
