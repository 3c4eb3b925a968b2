//! The state cache: snapshots of prompts' prefixes, so that a prompt that begins like an earlier one starts where they
//! part.
//!
//! A snapshot stands at a multiple of [`CHUNK_ROWS`] rows that prefill alone computed. It holds the backend's states
//! there, the KV rows since the snapshot before it (its parent), and for decisions the head's memory rows of the same
//! stretch. A chain from the root down to a snapshot is everything that a cold run would have there, bit for bit.
//!
//! Snapshots are found by a hash of all their tokens and used only if the tokens themselves are equal, so that two
//! prompts with one hash cost a miss and never a wrong answer. The least recently used snapshot without children goes
//! first when room is needed; one that a running job builds on stays.
//!
//! A snapshot serves prompts that contain it whole. For two prompts that part before the snapshot's end, the cache
//! names the multiple of [`CHUNK_ROWS`] up to which they agree (the branch), and the second prompt leaves a snapshot
//! there for the third.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use descant_model::{CHUNK_ROWS, Saved, SavedMemory};

/// Snapshots of chat prompts have no memory rows of the head, so decisions and chat do not share theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    Chat,
    Decision,
}

/// A snapshot and what leads to it.
#[derive(Debug)]
pub(crate) struct Node {
    parent: Option<Arc<Node>>,
    /// Tokens of its own stretch.
    ids: Vec<u32>,
    saved: Saved,
    /// The head's memory rows of its own stretch; none for chat.
    memory: Option<SavedMemory>,
}

/// What the cache knows about a prompt.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The longest snapshot that the prompt contains.
    pub(crate) node: Option<Arc<Node>>,
    /// Where the prompt parts from others that go further with it than the snapshot does.
    pub(crate) branch: Option<usize>,
}

/// Bounded, exact, least recently used goes first.
#[derive(Debug)]
pub(crate) struct Cache {
    bytes_max: usize,
    bytes: usize,
    /// Bytes of snapshots on their way into the cache.
    reserved: Arc<AtomicUsize>,
    /// Shortest prefix that is worth a snapshot, in rows.
    rows_min: usize,
    nodes: HashMap<Key, Kept>,
    /// Snapshots by the time of their last use.
    order: BTreeMap<u64, Key>,
    /// How many snapshots pass through a prefix.
    paths: HashMap<Key, usize>,
    clock: u64,
    evictions: u64,
    hash: fn(&[u32], usize) -> Vec<u64>,
}

/// A prefix by its length and hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    lane: Lane,
    chunks: usize,
    hash: u64,
}

/// Room in the cache for a snapshot that is about to be taken. Dropping it gives the room back.
#[derive(Debug)]
pub(crate) struct Reserved {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Kept {
    node: Arc<Node>,
    used: u64,
    /// Keys of the prefixes that end in its own stretch, its own key last.
    path: Vec<Key>,
}

impl Node {
    /// Positions whose KV rows and memory rows it holds.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.saved.rows.clone()
    }

    /// The head's memory rows of its stretch.
    ///
    /// # Panics
    /// If it is chat's.
    pub(crate) fn memory(&self) -> &SavedMemory {
        self.memory
            .as_ref()
            .expect("a decision's snapshot has memory rows")
    }

    /// The snapshots from position 0 to this one.
    pub(crate) fn chain(self: &Arc<Node>) -> Vec<Arc<Node>> {
        let mut chain = Vec::new();
        let mut next = Some(self);
        while let Some(node) = next {
            chain.push(Arc::clone(node));
            next = node.parent.as_ref();
        }
        chain.reverse();
        chain
    }

    /// The backend's copies.
    pub(crate) fn saved(&self) -> &Saved {
        &self.saved
    }

    /// Whether a prompt begins with exactly its tokens.
    fn begins(&self, prompt: &[u32]) -> bool {
        let own = prompt.get(self.saved.rows.clone());
        own == Some(&self.ids[..])
            && self
                .parent
                .as_ref()
                .is_none_or(|parent| parent.begins(prompt))
    }

    /// Memory that it takes, its parents' left out.
    fn bytes(&self) -> usize {
        let memory = self.memory.as_ref().map_or(0, |memory| memory.bytes);
        self.saved.bytes + memory + size_of_val(&self.ids[..])
    }
}

impl Cache {
    /// An empty cache; with `bytes_max` 0 it stays empty.
    pub(crate) fn new(bytes_max: usize, rows_min: usize) -> Cache {
        Cache {
            bytes_max,
            bytes: 0,
            reserved: Arc::default(),
            rows_min,
            nodes: HashMap::new(),
            order: BTreeMap::new(),
            paths: HashMap::new(),
            clock: 0,
            evictions: 0,
            hash: prefix_hashes,
        }
    }

    /// Whether snapshots are kept at all.
    pub(crate) fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    /// Whether a snapshot after so many rows is worth its memory.
    pub(crate) fn is_worth(&self, rows: usize) -> bool {
        self.is_on() && rows >= self.rows_min.max(CHUNK_ROWS)
    }

    /// The hash of a prompt's first `rows` rows, a multiple of a chunk. Two prompts with one hash are most likely equal so
    /// far, but need not be.
    pub(crate) fn prefix_hash(&self, prompt: &[u32], rows: usize) -> Option<u64> {
        (self.hash)(&prompt[..rows], CHUNK_ROWS).pop()
    }

    /// Looks a prompt up. Neither the snapshot nor the branch goes beyond `rows_max`.
    pub(crate) fn find(&mut self, lane: Lane, prompt: &[u32], rows_max: usize) -> Found {
        if !self.is_on() {
            return Found::default();
        }
        let keys = self.keys(lane, &prompt[..rows_max.min(prompt.len())]);
        let hit = keys.iter().rev().find(|key| {
            let kept = self.nodes.get(key);
            kept.is_some_and(|kept| kept.node.begins(prompt))
        });
        let hit_chunks = hit.map_or(0, |key| key.chunks);
        let shared = keys.iter().rev().find(|key| self.paths.contains_key(key));
        let branch = shared
            .map(|key| key.chunks)
            .filter(|chunks| *chunks > hit_chunks);
        Found {
            node: hit.copied().map(|key| self.touch(key)),
            branch: branch.map(|chunks| chunks * CHUNK_ROWS),
        }
    }

    /// Makes room for a snapshot of so many bytes before it is taken; `None` if that cannot be.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Option<Reserved> {
        if !self.is_on() || !self.make_room(bytes) {
            return None;
        }
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        Some(Reserved {
            bytes,
            all: Arc::clone(&self.reserved),
        })
    }

    /// Keeps a snapshot that ends with the last of `prefix`, in the room that was reserved for it. Gives it back as a parent for the
    /// next, or the one that is there already; `None` if there is no room for what came to it since, or its parent is not the one
    /// it builds on.
    pub(crate) fn insert(
        &mut self,
        lane: Lane,
        prefix: &[u32],
        parent: Option<Arc<Node>>,
        (saved, reserved): (Saved, Reserved),
        memory: Option<SavedMemory>,
    ) -> Option<Arc<Node>> {
        let parent_end = parent.as_ref().map_or(0, |parent| parent.rows().end);
        if saved.rows != (parent_end..prefix.len()) {
            return None;
        }
        let mut path = self.keys(lane, prefix).split_off(parent_end / CHUNK_ROWS);
        let key = *path.last()?;
        if let Some(kept) = self.nodes.get(&key) {
            return kept.node.begins(prefix).then(|| self.touch(key));
        }
        path.shrink_to_fit();
        let node = Arc::new(Node {
            ids: prefix[saved.rows.clone()].to_vec(),
            parent,
            saved,
            memory,
        });
        drop(reserved);
        if !self.make_room(node.bytes()) {
            return None;
        }
        self.bytes += node.bytes();
        for key in &path {
            *self.paths.entry(*key).or_default() += 1;
        }
        let kept = Kept {
            node,
            used: 0,
            path,
        };
        self.nodes.insert(key, kept);
        Some(self.touch(key))
    }

    /// Snapshots kept.
    pub(crate) fn entries(&self) -> usize {
        self.nodes.len()
    }

    /// Memory of the snapshots kept, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Snapshots dropped to make room.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Marks a snapshot and what leads to it as used now.
    fn touch(&mut self, key: Key) -> Arc<Node> {
        let kept = self
            .nodes
            .get_mut(&key)
            .expect("the caller looked the key up");
        self.clock += 1;
        self.order.remove(&kept.used);
        kept.used = self.clock;
        self.order.insert(self.clock, key);
        // Parents cannot go before their children, so they need no mark.
        Arc::clone(&kept.node)
    }

    /// Drops snapshots until `bytes` more fit; false if that cannot be.
    fn make_room(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes_max {
            return false;
        }
        while self.bytes + self.reserved.load(Ordering::Relaxed) + bytes > self.bytes_max {
            // The cache's own count is 1; children and running jobs add theirs.
            let idle = |key: &&Key| Arc::strong_count(&self.nodes[*key].node) == 1;
            let Some(key) = self.order.values().find(idle).copied() else {
                return false;
            };
            self.evict(key);
        }
        true
    }

    fn evict(&mut self, key: Key) {
        let kept = self
            .nodes
            .remove(&key)
            .expect("the order names kept snapshots");
        self.order.remove(&kept.used);
        self.bytes -= kept.node.bytes();
        self.evictions += 1;
        for key in &kept.path {
            let count = self.paths.get_mut(key).expect("insert counted the path");
            *count -= 1;
            if *count == 0 {
                self.paths.remove(key);
            }
        }
    }

    /// Keys of all prefixes of whole chunks, shortest first.
    fn keys(&self, lane: Lane, prompt: &[u32]) -> Vec<Key> {
        let hashes = (self.hash)(prompt, CHUNK_ROWS);
        let key = |(index, hash)| Key {
            lane,
            chunks: index + 1,
            hash,
        };
        hashes.into_iter().enumerate().map(key).collect()
    }
}

/// The hash of each prefix of whole chunks, shortest first.
fn prefix_hashes(ids: &[u32], chunk: usize) -> Vec<u64> {
    let mut hasher = DefaultHasher::new();
    let chunks = ids.chunks_exact(chunk);
    let after = |chunk: &[u32]| {
        for id in chunk {
            hasher.write_u32(*id);
        }
        hasher.finish()
    };
    chunks.map(after).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a snapshot of the tests apart from its tokens.
    const SAVED_BYTES: usize = 1000;

    fn saved(rows: Range<usize>) -> Saved {
        Saved {
            rows,
            bytes: SAVED_BYTES,
            data: Box::new(()),
        }
    }

    fn prompt(chunks: &[u32]) -> Vec<u32> {
        let chunk = |id: &u32| [*id; CHUNK_ROWS];
        chunks.iter().flat_map(chunk).collect()
    }

    fn insert(cache: &mut Cache, chunks: &[u32], parent: Option<&Arc<Node>>) -> Option<Arc<Node>> {
        let start = parent.map_or(0, |parent| parent.rows().end);
        let prompt = prompt(chunks);
        let rows = start..prompt.len();
        let reserved = cache.reserve(SAVED_BYTES)?;
        cache.insert(
            Lane::Chat,
            &prompt,
            parent.cloned(),
            (saved(rows), reserved),
            None,
        )
    }

    /// Rows of the snapshot found and the branch.
    fn find(cache: &mut Cache, chunks: &[u32]) -> (usize, Option<usize>) {
        let prompt = prompt(chunks);
        let found = cache.find(Lane::Chat, &prompt, prompt.len());
        let rows = found.node.map_or(0, |node| node.rows().end);
        (rows, found.branch)
    }

    fn roomy() -> Cache {
        Cache::new(1 << 20, CHUNK_ROWS)
    }

    #[test]
    fn the_longest_snapshot_that_a_prompt_contains_is_found() {
        let mut cache = roomy();
        let first = insert(&mut cache, &[1], None).unwrap();
        let third = insert(&mut cache, &[1, 2, 3], Some(&first)).unwrap();
        assert_eq!(find(&mut cache, &[1, 2, 3, 4]), (192, None));
        assert_eq!(find(&mut cache, &[1, 9]), (64, None));
        assert_eq!(find(&mut cache, &[9, 2, 3]), (0, None));
        let ends: Vec<_> = third.chain().iter().map(|node| node.rows()).collect();
        assert_eq!(ends, [0..64, 64..192]);
    }

    #[test]
    fn a_prompt_that_parts_earlier_learns_where() {
        let mut cache = roomy();
        insert(&mut cache, &[1, 2, 3], None);
        assert_eq!(find(&mut cache, &[1, 2, 7, 8]), (0, Some(128)));
        insert(&mut cache, &[1, 2], None);
        assert_eq!(find(&mut cache, &[1, 2, 7, 8]), (128, None));
    }

    #[test]
    fn neither_snapshot_nor_branch_goes_beyond_the_bound() {
        let mut cache = roomy();
        insert(&mut cache, &[1, 2], None);
        insert(&mut cache, &[1, 2, 3, 4], None);
        let prompt = prompt(&[1, 2, 3, 4]);
        let found = cache.find(Lane::Chat, &prompt, 192);
        assert_eq!(found.node.unwrap().rows().end, 128);
        assert_eq!(found.branch, Some(192));
    }

    #[test]
    fn lanes_do_not_share() {
        let mut cache = roomy();
        insert(&mut cache, &[1], None);
        assert!(cache.find(Lane::Decision, &prompt(&[1]), 64).node.is_none());
    }

    #[test]
    fn equal_hashes_of_other_tokens_are_no_hit() {
        let mut cache = roomy();
        cache.hash = |ids, chunk| (0..ids.len() / chunk).map(|_| 7).collect();
        let first = insert(&mut cache, &[1, 2], None);
        assert!(first.is_some());
        assert_eq!(find(&mut cache, &[1, 2]).0, 128);
        assert_eq!(find(&mut cache, &[1, 3]).0, 0);
        assert_eq!(find(&mut cache, &[3, 2]).0, 0);
        assert!(insert(&mut cache, &[3, 2], None).is_none());
        assert_eq!(find(&mut cache, &[1, 2]).0, 128);
        // A child is compared down to the root.
        insert(&mut cache, &[1, 2, 4], first.as_ref());
        assert_eq!(find(&mut cache, &[1, 2, 4]).0, 192);
        assert_eq!(find(&mut cache, &[1, 3, 4]).0, 0);
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let bytes = SAVED_BYTES + 4 * CHUNK_ROWS;
        let mut cache = Cache::new(3 * bytes, CHUNK_ROWS);
        for id in 1..=3 {
            insert(&mut cache, &[id], None).unwrap();
        }
        assert_eq!(cache.bytes(), 3 * bytes);
        find(&mut cache, &[1]);
        insert(&mut cache, &[4], None).unwrap();
        let held: Vec<_> = (1..=4).map(|id| find(&mut cache, &[id]).0 > 0).collect();
        assert_eq!(held, [true, false, true, true]);
        assert_eq!((cache.entries(), cache.evictions()), (3, 1));
        assert_eq!(cache.bytes(), 3 * bytes);
        assert_eq!((cache.order.len(), cache.paths.len()), (3, 3));
    }

    #[test]
    fn what_others_build_on_stays() {
        let bytes = SAVED_BYTES + 4 * CHUNK_ROWS;
        let mut cache = Cache::new(2 * bytes, CHUNK_ROWS);
        let parent = insert(&mut cache, &[1], None);
        let child = insert(&mut cache, &[1, 2], parent.as_ref());
        drop(parent);
        // A job holds the child, and the child its parent: no room for another.
        assert!(insert(&mut cache, &[3], None).is_none());
        drop(child);
        assert!(insert(&mut cache, &[3], None).is_some());
        assert_eq!(find(&mut cache, &[1, 2]), (64, None));
    }

    #[test]
    fn a_snapshot_greater_than_the_cache_is_not_kept() {
        let mut cache = Cache::new(SAVED_BYTES, CHUNK_ROWS);
        assert!(insert(&mut cache, &[1], None).is_none());
        assert_eq!((cache.entries(), cache.bytes()), (0, 0));
    }

    #[test]
    fn a_snapshot_without_its_parent_is_not_kept() {
        let mut cache = roomy();
        let prefix = prompt(&[1, 2]);
        let reserved = cache.reserve(SAVED_BYTES).unwrap();
        let orphan = (saved(64..128), reserved);
        let orphan = cache.insert(Lane::Chat, &prefix, None, orphan, None);
        assert!(orphan.is_none());
    }

    #[test]
    fn room_is_made_before_a_snapshot_is_taken_and_held_until_it_is_there() {
        let mut cache = Cache::new(3 * (SAVED_BYTES + 4 * CHUNK_ROWS), CHUNK_ROWS);
        for id in [1, 2] {
            insert(&mut cache, &[id], None).unwrap();
        }
        assert!(cache.reserve(4 * SAVED_BYTES).is_none(), "more than all");
        assert_eq!(cache.entries(), 2, "nothing is dropped for that");
        let [first, second] = [(); 2].map(|()| cache.reserve(SAVED_BYTES).unwrap());
        assert_eq!((cache.entries(), cache.evictions()), (1, 1));
        // The two on their way leave room for one.
        insert(&mut cache, &[3], None).unwrap();
        assert_eq!((cache.entries(), cache.evictions()), (1, 2));
        drop((first, second));
        insert(&mut cache, &[4], None).unwrap();
        insert(&mut cache, &[5], None).unwrap();
        assert_eq!((cache.entries(), cache.evictions()), (3, 2));
    }

    #[test]
    fn a_second_snapshot_of_one_prefix_is_the_first() {
        let mut cache = roomy();
        let first = insert(&mut cache, &[1, 2], None).unwrap();
        let second = insert(&mut cache, &[1, 2], None).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(cache.entries(), 1);
    }

    #[test]
    fn off_is_off() {
        let mut cache = Cache::new(0, CHUNK_ROWS);
        assert!(!cache.is_worth(640));
        assert_eq!(find(&mut cache, &[1]), (0, None));
    }
}
