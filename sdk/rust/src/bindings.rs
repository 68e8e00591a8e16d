//! What `wit-bindgen` makes of the contract: one world per kind of plugin, one set of shared types.

/// The records that every kind of plugin speaks of.
pub mod types {
    wit_bindgen::generate!({
        path: "../../wit/0.1.0",
        inline: "
            package molt:sdk;
            world types { import molt:plugin/types@0.1.0; }
        ",
        generate_all,
        generate_unused_types: true,
        additional_derives: [PartialEq, Clone],
    });
    pub use molt::plugin::types::*;
}

pub mod environment {
    wit_bindgen::generate!({
        path: "../../wit/0.1.0",
        world: "environment-plugin",
        with: { "molt:plugin/types@0.1.0": crate::bindings::types::molt::plugin::types },
        additional_derives: [PartialEq, Clone],
        pub_export_macro: true,
        default_bindings_module: "molt_plugin::internal::environment",
    });
}

pub mod reward {
    wit_bindgen::generate!({
        path: "../../wit/0.1.0",
        world: "reward-plugin",
        with: { "molt:plugin/types@0.1.0": crate::bindings::types::molt::plugin::types },
        additional_derives: [PartialEq, Clone],
        pub_export_macro: true,
        default_bindings_module: "molt_plugin::internal::reward",
    });
}

pub mod estimator {
    wit_bindgen::generate!({
        path: "../../wit/0.1.0",
        world: "estimator-plugin",
        additional_derives: [PartialEq, Clone],
        pub_export_macro: true,
        default_bindings_module: "molt_plugin::internal::estimator",
    });
}
