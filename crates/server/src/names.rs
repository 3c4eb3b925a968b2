//! The names under which the served model is known.
//!
//! A release is served under one name; requests may also say the names that the field's clients send: the two sizes
//! with the hosted services' prefixes, and TypeSafe's `jev-…` aliases. Any other name is refused, so that a typo or
//! the other size is not answered by a model that was not asked for.

/// What a request's `model` turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A name of the served model, or one of its aliases; replies echo it as sent.
    Clef(String),
    /// A TypeSafe alias; replies carry the served name, since an alias stands for a dated version.
    Jev,
    /// Missing, null or empty: whatever is served.
    Served,
}

/// The names that are answered.
#[derive(Clone, Debug)]
pub struct Names {
    served: String,
    /// Further names accepted exactly, such as the release's path.
    also: Vec<String>,
    size: Size,
    any: bool,
}

/// Which of the published sizes a model is; other models answer to neither name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Clef, 27 billion parameters.
    Clef,
    /// Clef-Flash, 9 billion parameters.
    Flash,
    /// Neither: a model somebody trained, or one made for tests. It answers to both names, having no sibling with
    /// which it could be confused.
    Other,
    /// Weights that are no model's. They answer to neither name, lest they be taken for what they are not.
    Dummy,
}

impl Size {
    /// The size with these sizes of the backbone.
    pub fn from_backbone(hidden: usize, layers: usize) -> Size {
        match (hidden, layers) {
            (5120, 64) => Size::Clef,
            (4096, 32) => Size::Flash,
            _ => Size::Other,
        }
    }

    /// The name of the size in requests.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Size::Clef => Some("clef"),
            Size::Flash => Some("clef-flash"),
            Size::Other | Size::Dummy => None,
        }
    }

    fn answers_to(self, name: &str) -> bool {
        match self {
            Size::Clef => name == "clef",
            Size::Flash => name == "clef-flash",
            Size::Other => name == "clef" || name == "clef-flash",
            Size::Dummy => false,
        }
    }
}

impl Names {
    /// Serves a model of a size as `served`, and also under the exact names `also`; under any name at all if `any`.
    pub fn new(served: String, also: Vec<String>, size: Size, any: bool) -> Names {
        Names {
            served,
            also,
            size,
            any,
        }
    }

    /// The served name: what replies carry where the request's own name is not echoed.
    pub fn served(&self) -> &str {
        &self.served
    }

    /// Reads the `model` of a request; `None` if nothing of that name is served.
    pub fn asked(&self, model: Option<&str>) -> Option<Asked> {
        let Some(name) = model.filter(|name| !name.is_empty()) else {
            return Some(Asked::Served);
        };
        if name == self.served || self.also.iter().any(|also| also == name) || self.is_size(name) {
            return Some(Asked::Clef(name.to_owned()));
        }
        if is_jev(name) {
            return Some(Asked::Jev);
        }
        self.any.then(|| Asked::Clef(name.to_owned()))
    }

    /// Every name that a listing shows, the served one first, each once.
    pub fn listed(&self) -> Vec<&str> {
        let mut names = vec![self.served.as_str()];
        let sizes: &[&str] = match self.size {
            Size::Clef => &["clef"],
            Size::Flash => &["clef-flash"],
            Size::Other => &["clef", "clef-flash"],
            Size::Dummy => &[],
        };
        names.extend(sizes.iter().filter(|name| **name != self.served));
        names
    }

    /// Whether a name is the served size's, with or without a hosted service's prefix, in any case.
    fn is_size(&self, name: &str) -> bool {
        let lower = name.to_ascii_lowercase();
        let bare = lower
            .strip_prefix("@cf/cloudflare/")
            .or_else(|| lower.strip_prefix("cloudflare/"))
            .unwrap_or(&lower);
        self.size.answers_to(bare)
    }
}

/// Whether a name is one of TypeSafe's: `jev-latest`, `jev-preview`, or `jev-` and a version that starts with a digit.
fn is_jev(name: &str) -> bool {
    name.strip_prefix("jev-").is_some_and(|rest| {
        rest == "latest" || rest == "preview" || rest.starts_with(|c: char| c.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flash() -> Names {
        Names::new(
            "my-flash".into(),
            vec!["models/flash".into()],
            Size::Flash,
            false,
        )
    }

    #[test]
    fn names_of_the_served_model_are_echoed() {
        for name in [
            "my-flash",
            "models/flash",
            "clef-flash",
            "Clef-Flash",
            "@cf/cloudflare/clef-flash",
            "cloudflare/clef-flash",
            "Cloudflare/clef-flash",
        ] {
            assert_eq!(
                flash().asked(Some(name)),
                Some(Asked::Clef(name.into())),
                "{name}"
            );
        }
    }

    #[test]
    fn aliases_stand_for_what_is_served() {
        for name in ["jev-latest", "jev-preview", "jev-1.14", "jev-2026-09-01"] {
            assert_eq!(flash().asked(Some(name)), Some(Asked::Jev), "{name}");
        }
    }

    #[test]
    fn no_name_means_what_is_served() {
        assert_eq!(flash().asked(None), Some(Asked::Served));
        assert_eq!(flash().asked(Some("")), Some(Asked::Served));
    }

    #[test]
    fn other_names_are_unknown() {
        for name in [
            "clef",
            "jevcompat-no-such-model",
            "jev-",
            "jev-nightly",
            "jev",
            "clef-flash ",
            "@cf/cloudflare/clef",
            "@cf/other/clef-flash",
            "gpt-6",
        ] {
            assert_eq!(flash().asked(Some(name)), None, "{name}");
        }
    }

    #[test]
    fn a_model_of_no_published_size_answers_to_both_names() {
        let names = Names::new("tiny".into(), Vec::new(), Size::Other, false);
        for name in ["clef", "clef-flash", "tiny"] {
            assert_eq!(names.asked(Some(name)), Some(Asked::Clef(name.into())));
        }
        assert_eq!(names.listed(), ["tiny", "clef", "clef-flash"]);
    }

    #[test]
    fn weights_of_no_model_answer_to_no_models_name() {
        let names = Names::new("flash-dummy".into(), Vec::new(), Size::Dummy, false);
        for name in ["clef", "clef-flash", "@cf/cloudflare/clef-flash"] {
            assert_eq!(names.asked(Some(name)), None, "{name}");
        }
        assert_eq!(names.listed(), ["flash-dummy"]);
    }

    #[test]
    fn any_name_is_answered_on_request() {
        let names = Names::new("tiny".into(), Vec::new(), Size::Other, true);
        assert_eq!(
            names.asked(Some("gpt-6")),
            Some(Asked::Clef("gpt-6".into()))
        );
    }

    #[test]
    fn sizes_are_told_by_the_backbone() {
        assert_eq!(Size::from_backbone(4096, 32), Size::Flash);
        assert_eq!(Size::from_backbone(5120, 64), Size::Clef);
        assert_eq!(Size::from_backbone(4096, 64), Size::Other);
    }
}
