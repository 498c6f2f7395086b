// The kernels of attention, for heads of up to HEAD_WIDTH features.
#include "attention.h"
#include "instances.h"

// Runs of tokens: the sequences, one run before them and one behind, both without keys.
struct Runs {
  device const int* query_start;
  device const int* seq_lens;
  int sequences;
  int tokens;

  int start(int n) const {
    if (n == 0) return 0;
    return n > sequences + 1 ? tokens : clamp(query_start[n - 1], 0, tokens);
  }
  // The run of a token: that of its number if each sequence has one, else it is searched for.
  int at(int token) const {
    const int likely = min(token, sequences) + 1;
    if (start(likely) <= token && token < start(likely + 1)) return likely;
    int low = 0, high = sequences + 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (start(middle) <= token) low = middle;
      else high = middle - 1;
    }
    return low;
  }
  int keys(int n) const { return n == 0 || n > sequences ? 0 : seq_lens[n - 1]; }
};

// Tiles have 32 rows and 16 keys, fewer where those would not fit into 32 KiB.
constexpr int groups_of(int row_bytes) { return row_bytes > 512 ? 2 : 4; }
constexpr int keys_of(int row_bytes) { return row_bytes > 768 ? 8 : 16; }

// What a paged call has to say of its keys.
template <typename T>
struct Batch {
  Runs runs;
  device const T* k;
  device const T* v;
  device const int* block_table;
  long table_row;
  int page;
  int window;
  long token_step;

  Pages<T> pages(device const T* cache, int run, long skip) const {
    return {cache + skip, block_table + max(run - 1, 0) * table_row, page, token_step};
  }
  Sight sight(int run, int queries) const {
    return {runs.keys(run), queries, window, true, 0, (device const uchar*)k, 0, 0};
  }
};

// A row of the grid is a token where ``few`` is 0; else it is a sequence, its plane a query of it,
// and sequences with more queries than ``few`` are left out.
template <typename T, int E>
[[kernel]] void paged_vector(
    device const T* q [[buffer(0)]], device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]], device const int* block_table [[buffer(3)]],
    device const int* query_start [[buffer(4)]], device const int* seq_lens [[buffer(5)]],
    device T* out [[buffer(6)]], constant long& q_token [[buffer(7)]],
    constant long& table_row [[buffer(8)]], constant int& tokens [[buffer(9)]],
    constant int& sequences [[buffer(10)]], constant int& heads [[buffer(11)]],
    constant int& kv_heads [[buffer(12)]], constant int& head_dim [[buffer(13)]],
    constant int& page [[buffer(14)]], constant int& window [[buffer(15)]],
    constant int& few [[buffer(16)]], constant float& scale [[buffer(17)]],
    constant float& cap [[buffer(18)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float sums[SPLITS * 32 * E], tops[SPLITS], totals[SPLITS];
  threadgroup int counts[SPLITS];
  const long step = long(kv_heads) * head_dim;
  const Batch<T> batch = {{query_start, seq_lens, sequences, tokens}, k, v, block_table,
                          table_row, page, window, step};
  int run = 0, token = int(at.y);
  if (few == 0) {
    run = batch.runs.at(token);
  } else {
    run = int(at.y) + 1;
    token = batch.runs.start(run) + int(at.z);
  }
  const int start = batch.runs.start(run), queries = batch.runs.start(run + 1) - start;
  if (few > 0 && (queries > few || int(at.z) >= queries)) return;
  const long skip = long(int(at.x) / (heads / kv_heads)) * head_dim;
  attend_row<T, E>(q + token * q_token + long(at.x) * head_dim, batch.pages(k, run, skip),
                   batch.pages(v, run, skip), out + (long(token) * heads + at.x) * head_dim,
                   batch.sight(run, queries), token - start, head_dim, head_dim, scale, cap, sums,
                   tops, totals, counts, lane, simdgroup, thread_index);
}

// A column of the grid is a tile; sequences with up to ``few`` queries are left out.
template <typename T, int W>
[[kernel]] void paged_tile(
    device const T* q [[buffer(0)]], device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]], device const int* block_table [[buffer(3)]],
    device const int* query_start [[buffer(4)]], device const int* seq_lens [[buffer(5)]],
    device T* out [[buffer(6)]], constant long& q_token [[buffer(7)]],
    constant long& table_row [[buffer(8)]], constant int& tokens [[buffer(9)]],
    constant int& sequences [[buffer(10)]], constant int& heads [[buffer(11)]],
    constant int& kv_heads [[buffer(12)]], constant int& head_dim [[buffer(13)]],
    constant int& page [[buffer(14)]], constant int& window [[buffer(15)]],
    constant int& few [[buffer(16)]], constant float& scale [[buffer(17)]],
    constant float& cap [[buffer(18)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  constexpr int GROUPS = groups_of(W * int(sizeof(T))), KEYS = keys_of(W * int(sizeof(T)));
  constexpr int ROWS = GROUPS * 8;
  threadgroup T own[ROWS * W], tile[KEYS * W];
  threadgroup float scores[ROWS * KEYS], scratch[GROUPS * 64], shrinks[ROWS];
  const int group = heads / kv_heads;
  const long step = long(kv_heads) * head_dim;
  const Batch<T> batch = {{query_start, seq_lens, sequences, tokens}, k, v, block_table,
                          table_row, page, window, step};
  int run = 0, high = sequences + 1;  // each run has a tile more than whole ones fit before it
  while (run < high) {
    const int middle = (run + high + 1) / 2;
    if (long(batch.runs.start(middle)) * group / ROWS + middle <= long(at.x)) run = middle;
    else high = middle - 1;
  }
  const int start = batch.runs.start(run), queries = batch.runs.start(run + 1) - start;
  const int ordinal = int(long(at.x) - long(start) * group / ROWS - run);
  const bool covered = run > 0 && run <= sequences;
  const Rows rows = {ordinal * ROWS, queries * group, group};
  if (rows.first >= rows.count || (covered && queries <= few)) return;
  const long skip = long(at.y) * head_dim, first_head = long(at.y) * group * head_dim;
  attend_tile<T, W, GROUPS, KEYS>(
      q + start * q_token + first_head, q_token, head_dim, batch.pages(k, run, skip),
      batch.pages(v, run, skip), out + long(start) * heads * head_dim + first_head,
      long(heads) * head_dim, batch.sight(run, queries), 0, 0, rows, head_dim, head_dim, scale,
      cap, own, tile, scores, scratch, shrinks, lane, simdgroup, thread_index);
}

// A column of the grid is a head, a row a query, a plane one of the batch.
template <typename T, int E>
[[kernel]] void dense_vector(
    device const T* q [[buffer(0)]], device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]], device const uchar* mask [[buffer(3)]],
    device T* out [[buffer(4)]], constant long& q_batch [[buffer(5)]],
    constant long& q_token [[buffer(6)]], constant long& q_head [[buffer(7)]],
    constant long& k_batch [[buffer(8)]], constant long& k_token [[buffer(9)]],
    constant long& k_head [[buffer(10)]], constant long& v_batch [[buffer(11)]],
    constant long& v_token [[buffer(12)]], constant long& v_head [[buffer(13)]],
    constant long& mask_batch [[buffer(14)]], constant long& mask_head [[buffer(15)]],
    constant long& mask_query [[buffer(16)]], constant long& mask_key [[buffer(17)]],
    constant int& queries [[buffer(18)]], constant int& keys [[buffer(19)]],
    constant int& heads [[buffer(20)]], constant int& kv_heads [[buffer(21)]],
    constant int& head_dim [[buffer(22)]], constant int& value_dim [[buffer(23)]],
    constant int& causal [[buffer(24)]], constant int& window [[buffer(25)]],
    constant int& mask_kind [[buffer(26)]], constant float& scale [[buffer(27)]],
    constant float& cap [[buffer(28)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float sums[SPLITS * 32 * E], tops[SPLITS], totals[SPLITS];
  threadgroup int counts[SPLITS];
  const long kv_head = int(at.x) / (heads / kv_heads), b = at.z, query = at.y, head = at.x;
  const Dense<T> own_keys = {k + b * k_batch + kv_head * k_head, k_token};
  const Dense<T> own_values = {v + b * v_batch + kv_head * v_head, v_token};
  const Sight sight = {keys, queries, window, causal != 0, mask_kind, mask,
                       b * mask_batch + head * mask_head + query * mask_query, mask_key};
  attend_row<T, E>(q + b * q_batch + query * q_token + head * q_head, own_keys, own_values,
                   out + ((b * queries + query) * heads + head) * value_dim, sight, int(query),
                   head_dim, value_dim, scale, cap, sums, tops, totals, counts, lane, simdgroup,
                   thread_index);
}

// A column of the grid is a tile, a row a key head, a plane one of the batch.
template <typename T, int W>
[[kernel]] void dense_tile(
    device const T* q [[buffer(0)]], device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]], device const uchar* mask [[buffer(3)]],
    device T* out [[buffer(4)]], constant long& q_batch [[buffer(5)]],
    constant long& q_token [[buffer(6)]], constant long& q_head [[buffer(7)]],
    constant long& k_batch [[buffer(8)]], constant long& k_token [[buffer(9)]],
    constant long& k_head [[buffer(10)]], constant long& v_batch [[buffer(11)]],
    constant long& v_token [[buffer(12)]], constant long& v_head [[buffer(13)]],
    constant long& mask_batch [[buffer(14)]], constant long& mask_head [[buffer(15)]],
    constant long& mask_query [[buffer(16)]], constant long& mask_key [[buffer(17)]],
    constant int& queries [[buffer(18)]], constant int& keys [[buffer(19)]],
    constant int& heads [[buffer(20)]], constant int& kv_heads [[buffer(21)]],
    constant int& head_dim [[buffer(22)]], constant int& value_dim [[buffer(23)]],
    constant int& causal [[buffer(24)]], constant int& window [[buffer(25)]],
    constant int& mask_kind [[buffer(26)]], constant float& scale [[buffer(27)]],
    constant float& cap [[buffer(28)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  constexpr int GROUPS = groups_of(W * int(sizeof(T))), KEYS = keys_of(W * int(sizeof(T)));
  constexpr int ROWS = GROUPS * 8;
  threadgroup T own[ROWS * W], tile[KEYS * W];
  threadgroup float scores[ROWS * KEYS], scratch[GROUPS * 64], shrinks[ROWS];
  const int group = heads / kv_heads;
  const long b = at.z, kv_head = at.y, first_head = kv_head * group;
  const Rows rows = {int(at.x) * ROWS, queries * group, group};
  const Dense<T> own_keys = {k + b * k_batch + kv_head * k_head, k_token};
  const Dense<T> own_values = {v + b * v_batch + kv_head * v_head, v_token};
  const Sight sight = {keys, queries, window, causal != 0, mask_kind, mask,
                       b * mask_batch + first_head * mask_head, mask_key};
  attend_tile<T, W, GROUPS, KEYS>(
      q + b * q_batch + first_head * q_head, q_token, q_head, own_keys, own_values,
      out + (b * queries * heads + first_head) * value_dim, long(heads) * value_dim, sight,
      mask_query, mask_head, rows, head_dim, value_dim, scale, cap, own, tile, scores, scratch,
      shrinks, lane, simdgroup, thread_index);
}

#define NAMED(K, T, N) \
  template [[host_name(#K "_" #T)]] [[kernel]] decltype(K<T, N>) K<T, N>;
#define INSTANCES(T)                      \
  NAMED(paged_vector, T, HEAD_WIDTH / 32) \
  NAMED(dense_vector, T, HEAD_WIDTH / 32) \
  NAMED(paged_tile, T, HEAD_WIDTH)        \
  NAMED(dense_tile, T, HEAD_WIDTH)
FOR_ALL(INSTANCES)
